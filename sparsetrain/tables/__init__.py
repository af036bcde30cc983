# SPDX-License-Identifier: Apache-2.0
"""Tables: the rows of a parameter with their slots and rules, and the formulas that update rows.

Only this package accesses their memory, so every read sees current rows.
"""

from sparsetrain.system.exports import public_names as _public_names
from sparsetrain.tables.on_disk import OnDisk as OnDisk

__all__, __dir__ = _public_names(globals())

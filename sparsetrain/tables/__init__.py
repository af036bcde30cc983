# SPDX-License-Identifier: Apache-2.0
"""Tables: the rows of a parameter with all that belongs to them, and the formulas that update rows.

Nothing else touches their memory, so whoever reads a row finds it current.
"""

from sparsetrain.system.exports import public_names as _public_names
from sparsetrain.tables.on_disk import OnDisk as OnDisk

__all__, __dir__ = _public_names(globals())

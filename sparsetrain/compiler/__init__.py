# SPDX-License-Identifier: Apache-2.0
"""Programs: a Relax module, checked, scheduled and compiled."""

from sparsetrain import runtime as _runtime  # noqa: F401

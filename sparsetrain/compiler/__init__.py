# SPDX-License-Identifier: Apache-2.0
"""Programs: Relax modules that are checked, scheduled and compiled."""

from sparsetrain import runtime as _runtime  # noqa: F401

# SPDX-License-Identifier: Apache-2.0
"""Programs: a Relax module, checked, scheduled and compiled."""

# SPDX-License-Identifier: Apache-2.0
"""Tables: the rows of a parameter with all that belongs to them, and the formulas that update rows.

Nothing else touches their memory, so whoever reads a row finds it current.
"""

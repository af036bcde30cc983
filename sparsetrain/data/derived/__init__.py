# SPDX-License-Identifier: Apache-2.0
"""Derived columns, computed from the row's other columns; one file for each kind.

`kind` has the interface. `sparsetrain.data.schema.derived` is the table of kinds.
"""

# SPDX-License-Identifier: Apache-2.0
"""Derived columns: made of other columns of a row, by one kind in each file.

`kind` says what a kind answers. `sparsetrain.data.schema.derived` is the table of kinds.
"""

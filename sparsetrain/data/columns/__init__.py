# SPDX-License-Identifier: Apache-2.0
"""Columns: from values to ids of table rows and to numbers, as learned from training data.

`category` is a column whose values have rows of a table: `value_counts` counts them, `vocabulary`
maps them to ids (with `hash_table`), `plain_ids` uses them as they are, `bags` reads lists of them.
`number` transforms dense columns.
"""

# SPDX-License-Identifier: Apache-2.0
"""Columns: from values to ids of table rows and to numbers, as learned from training data.

`category` is a column whose values have rows of a table: `counts` counts them and tells the kind of
column, `vocabulary` maps them to ids, `saved_vocabularies` keeps those, `bags` reads lists of them.
`dense` are columns of numbers, `plain` those of already encoded data. `settings` hold for all
columns.
"""

# SPDX-License-Identifier: Apache-2.0
"""Columns: from values to ids of table rows and to numbers, as learned from training data.

`category` is a column whose values have rows of a table; its module has the settings of all
columns too. `counts` counts values and detects the kind of column, `vocabulary` maps them to ids,
`bags` reads lists. `dense` has columns of numbers, `plain` columns of already encoded data.
"""

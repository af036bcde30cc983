# SPDX-License-Identifier: Apache-2.0
"""Columns: from values to ids of table rows and to numbers, as learned from training data.

`category` is a column whose values have rows of a table: `counts` counts them and detects the kind
of column, `vocabulary` maps them to ids, `saved_vocabularies` stores vocabularies, `bags` reads
lists. `dense` has columns of numbers, `plain` columns of already encoded data. `settings` apply to
all columns.
"""

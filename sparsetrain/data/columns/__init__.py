# SPDX-License-Identifier: Apache-2.0
"""Feature columns: mappings from values to ids or numbers, learned from training data.

`category` has the columns with a table, and the values that they know. `counts` counts values and
detects the kind of column, `bags` reads lists. `dense` has columns of numbers, `plain` columns of
already encoded data.
"""

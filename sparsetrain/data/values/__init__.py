# SPDX-License-Identifier: Apache-2.0
"""Arrow columns and user arrays, read strictly into NumPy.

`location` names a fault's file, row and column; `arrow_types` classifies column types; `arrays`
checks arrays that a user passes; `numeric`, `arrow_values` (of categories), `lists` and
`label_values` read columns, and raise `DataError` with the row of the first value that does not
fit. Nothing here depends on files, schemas or encodings.
"""

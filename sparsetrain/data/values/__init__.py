# SPDX-License-Identifier: Apache-2.0
"""Arrow columns and user arrays, read strictly into NumPy.

`location` gives the file, row and column of an error; `arrow_types` classifies column types;
`arrays` checks arrays that a user passes; `numeric`, `arrow_values` (of categories), `lists` and
`label_values` read columns, and raise `DataError` with the row of the first invalid value. Nothing
here depends on files, schemas or encodings.
"""

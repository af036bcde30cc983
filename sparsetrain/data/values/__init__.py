# SPDX-License-Identifier: Apache-2.0
"""Arrow columns and user arrays, read strictly into NumPy.

`location` gives the file, row and column of an error; `arrow_types` classifies column types;
`arrays` checks arrays that a user passes; `arrow_values` reads columns as numbers and as values of
categories, `moments` as points in time. All raise `DataError` with the row of the first invalid
value. Nothing here depends on files, schemas or encodings.
"""

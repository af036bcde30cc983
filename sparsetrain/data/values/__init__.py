# SPDX-License-Identifier: Apache-2.0
"""Arrow columns and user arrays, read strictly into NumPy.

`location` names a fault's file, row and column; `arrow_types` classifies column types; `arrays`
checks arrays that a user passes; `numeric`, `timestamps`, `text` and `labels` read columns. Nothing
here knows of files, schemas or encodings.
"""

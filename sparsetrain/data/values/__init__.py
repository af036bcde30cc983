# SPDX-License-Identifier: Apache-2.0
"""One column read strictly: what may lie in an array, and where in the user's data it lies.

`place` (how a fault is named), `kinds` (Arrow types), `arrays` (what a user hands over), `filled`
(nulls as zeros), `missing`, `numeric`, `moments`, `of_rows` (labels and weights), `text`. Nothing
here knows of files, schemas or encodings.
"""

# SPDX-License-Identifier: Apache-2.0
"""Schemas: names, roles and rules of columns.

`schema` is the user's description of a log, `schema_file` its TOML or JSON form, `column_names`
Criteo's and torchrec's names, `columns` the columns found in a file.
"""

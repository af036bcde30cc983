# SPDX-License-Identifier: Apache-2.0
"""Schemas: names, roles and rules of columns.

`schema` has the user's description of a log; `schema_file` reads and writes it as TOML or JSON.
`columns` finds the columns of a file by the schema's names, or by the names that Criteo and
torchrec use.
"""

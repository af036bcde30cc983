# SPDX-License-Identifier: Apache-2.0
"""Schemas: names, roles and rules of columns.

`schema` is the user's description of a log, `schema_file` its TOML or JSON form. `columns` finds
the columns of a file by these names, or by Criteo's and torchrec's.
"""

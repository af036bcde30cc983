# SPDX-License-Identifier: Apache-2.0
"""Which columns there are and what is to be done with each.

`schema` (what a user may say of a log), `schema_file` (in TOML or JSON), `names` (Criteo's names
and their likes), `columns` (both applied to a file).
"""

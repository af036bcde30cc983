# SPDX-License-Identifier: Apache-2.0
"""Rows as they are stored, from files, tables and streams, a piece at a time.

`source` (it has parts, a part has pieces), `files` (which there are), `footers` and `parquet`,
`text_file`, `dialect`, `text_rows` and `text_source`, `tables`, and `inputs`, which tells them
apart; `derived` (columns made of others) and `held_out` (one source as two).
"""

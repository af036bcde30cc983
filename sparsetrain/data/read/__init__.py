# SPDX-License-Identifier: Apache-2.0
"""Sources of raw rows: parquet, text files, tables and streams, read a piece at a time.

`open_source` dispatches on the kind of data. A `source` has parts, a part has pieces. `files` is
the table of file formats: `parquet`, and text (`text_blocks`, `text_rows`). `tables` are in memory.
`derived_columns` and `constant_columns` add columns, `split` divides a source into two.
"""

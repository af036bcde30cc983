# SPDX-License-Identifier: Apache-2.0
"""Sources of raw rows: parquet, text files, tables and streams, read piece by piece.

`open_source` dispatches on the kind of data, and has the table of file formats. A `source` has
parts, a part has pieces. Files are `parquet`, or text (`text_blocks`, `text_rows`). `tables` reads
tables in memory. `added_columns` adds columns; `split` divides a source.
"""

# SPDX-License-Identifier: Apache-2.0
"""Conversion of raw logs of any size to encoded parquet, in bounded memory and resumable.

`chunks` splits the input, and reads a chunk without its bad rows. `learn` is the first pass,
`write_files` the second. `convert` is the entry point; a second run keeps the encoder and finished
files.
"""

from sparsetrain.data.conversion.convert import convert_files as convert_files
from sparsetrain.data.conversion.job import Progress as Progress

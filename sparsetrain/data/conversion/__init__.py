# SPDX-License-Identifier: Apache-2.0
"""Conversion of raw logs of any size to encoded parquet, in bounded memory and resumable.

`chunks` defines the job, splits its input, and reads a chunk without its bad rows. `learn` is the
first pass over the data. `convert` is the entry point and writes the files in the second pass;
after an interruption, the next run keeps the encoder and the finished files.
"""

from sparsetrain.data.conversion.chunks import Progress as Progress
from sparsetrain.data.conversion.convert import convert_files as convert_files

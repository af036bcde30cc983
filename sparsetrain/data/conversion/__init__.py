# SPDX-License-Identifier: Apache-2.0
"""Conversion of raw logs of any size to encoded parquet, in bounded memory and resumable.

Three passes, each a sequence of tasks with one atomically written file as result; a second run
skips tasks whose file exists. `chunks` splits the input, `strict_reader` and `learn_chunks` read a
chunk's values and bad rows, `write_files` writes the result, `passes` runs the three, `convert` is
the entry point.
"""

from sparsetrain.data.conversion.convert import convert_files as convert_files
from sparsetrain.data.conversion.passes import Progress as Progress

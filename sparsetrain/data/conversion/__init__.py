# SPDX-License-Identifier: Apache-2.0
"""From raw logs of any size to encoded parquet, in bounded memory, resumable after any kill.

Three passes, each cut into tasks whose result is one file that appears whole or not at all; so a
second run does the tasks whose file is not there. `job` (what is asked for), `chunks` (the input,
cut), `learning` (a chunk's values and faults; text becomes parquet), `merging` (counts of a column
over all chunks), `writing` (encoded files), `passes` (those three), `run` (all of it in order,
and `dataset.json`).
"""

from sparsetrain.data.conversion.job import Progress as Progress
from sparsetrain.data.conversion.run import convert_files as convert_files

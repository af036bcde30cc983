# SPDX-License-Identifier: Apache-2.0
"""Cost of sparse and dense updates of a table on this machine: time, memory, and the crossover.

Read in this order: `case` (a table, its ids and gradients), `arms` (the ways to update it; TVM's
own way is in `stock`), `measuring` (one arm on one case), `tables` (the sweep over numbers of rows,
and the user's tables).
"""

from sparsetrain.compare.arms import ARMS as ARMS
from sparsetrain.compare.case import Case as Case
from sparsetrain.compare.measuring import Measurement as Measurement
from sparsetrain.compare.measuring import measure as measure
from sparsetrain.compare.tables import sweep as sweep
from sparsetrain.compare.tables import tables_of_data as tables_of_data
from sparsetrain.compare.tables import tables_of_rows as tables_of_rows
from sparsetrain.compare.tables import tables_of_run as tables_of_run
from sparsetrain.system.exports import public_names as _public_names

__all__, __dir__ = _public_names(globals())

# SPDX-License-Identifier: Apache-2.0
"""Dead rows: skip the computation of activation rows that no result reads.

Read `row_rules` (which operators work row by row), `selection` (where rows are chosen) and
`eliminate` (the pass); `repeated` computes equal rows of inputs once.
"""

from sparsetrain.compiler.dead_rows.eliminate import eliminate_dead_rows as eliminate_dead_rows
from sparsetrain.compiler.dead_rows.eliminate import keep_dead_rows as keep_dead_rows
from sparsetrain.compiler.dead_rows.repeated import ROW_NUMBERS as ROW_NUMBERS
from sparsetrain.compiler.dead_rows.repeated import compute_repeated_once as compute_repeated_once
from sparsetrain.compiler.dead_rows.repeated import repeated_arguments as repeated_arguments
from sparsetrain.compiler.dead_rows.spared import Spared as Spared
from sparsetrain.compiler.dead_rows.spared import describe as describe

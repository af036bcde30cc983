# SPDX-License-Identifier: Apache-2.0
"""What the two paths of a row-sparse gradient cost on this machine, for `choice` to choose by.

`figures` answers; `calibration` measures straight lines (`lines`), `trial` tries both paths on
tables of the very sizes, `remembered` keeps what was found. They decide speed, never bits.
"""

from sparsetrain.optim.paths.costs.figures import costs_of as costs_of
from sparsetrain.optim.paths.costs.figures import kernels_to_measure as kernels_to_measure
from sparsetrain.optim.paths.costs.figures import verdict_of as verdict_of
from sparsetrain.optim.paths.costs.lines import Costs as Costs
from sparsetrain.optim.paths.costs.remembered import TRIES as TRIES
from sparsetrain.optim.paths.costs.remembered import Kept as Kept

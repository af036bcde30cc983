# SPDX-License-Identifier: Apache-2.0
"""Training on several processes and machines: tables sharded, dense parameters replicated.

- `group`: the argument of a `Trainer`; `comm` and its engines `mpi_comm`, `torch_comm`
- `sharding_plan`, `shards`: rows of each rank; `exchange`: rows and gradients between ranks
- `cut`: programs that read received rows; `sharded_step`, `sums`: the step
- `shared_rows`: the rows that each rank reads
- `ranks`: a trainer's interface to its ranks; `saving`, `run`: checkpoints of all ranks
"""

from sparsetrain.parallel.group import local as local
from sparsetrain.parallel.group import mpi as mpi
from sparsetrain.parallel.group import torch as torch
from sparsetrain.system.exports import public_names as _public_names

__all__, __dir__ = _public_names(globals())

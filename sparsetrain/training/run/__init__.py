# SPDX-License-Identifier: Apache-2.0
"""Folder of a run: its checkpoints, pointers to them, a lock for the writer, and the log.

- `folder`: the run; saves and prunes checkpoints
- `checkpoints`: names of checkpoints, the pointers `LATEST` and `BEST`, and the lookup
- `lock`: lets one process at a time write
- `state`: progress of the run, stored in a checkpoint
- `log`: metrics, as JSON lines and CSV
"""

from sparsetrain.training.run.checkpoints import checkpoint_in as checkpoint_in
from sparsetrain.training.run.folder import Run as Run
from sparsetrain.training.run.folder import chosen as chosen
from sparsetrain.training.run.folder import is_free as is_free
from sparsetrain.training.run.log import read_log as read_log

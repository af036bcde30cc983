# SPDX-License-Identifier: Apache-2.0
"""Folder of a run: its checkpoints, pointers to them, a lock for the writer, and the log.

- `folder`: the run; saves and prunes checkpoints
- `checkpoints`: their names, the files that point to the latest and the best, and the lookup
- `lock`: the single writer
- `state`: progress of the run, stored in a checkpoint
- `log`: metrics, as JSON lines and CSV
"""

from sparsetrain.training.run.checkpoints import checkpoint_in as checkpoint_in
from sparsetrain.training.run.folder import Run as Run
from sparsetrain.training.run.folder import chosen as chosen
from sparsetrain.training.run.folder import is_free as is_free
from sparsetrain.training.run.log import read_log as read_log

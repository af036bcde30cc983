# SPDX-License-Identifier: Apache-2.0
"""Folder of a run: its checkpoints, the pointers to them, a lock for the writer, and the log.

`folder` owns the checkpoints and the pointers to them, `checkpoints` finds them, `lock` is who may
write, `log` the metrics, `events` their copy for TensorBoard, `fingerprint` what the data looked
like.
"""

from sparsetrain.training.run.checkpoints import checkpoint_in as checkpoint_in
from sparsetrain.training.run.fingerprint import fingerprint as fingerprint
from sparsetrain.training.run.fingerprint import require_same as require_same
from sparsetrain.training.run.folder import Run as Run
from sparsetrain.training.run.folder import chosen as chosen
from sparsetrain.training.run.log import read_log as read_log

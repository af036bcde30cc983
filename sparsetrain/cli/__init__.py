# SPDX-License-Identifier: Apache-2.0
"""The `sparsetrain` command: thin commands over the library's public names.

Results go to stdout, everything else to stderr. Each command imports what it needs when it runs,
so that `sparsetrain --help` answers without TVM, Arrow or NumPy.

`app` lists the commands and the exit codes of errors. `train` runs through `options` and `settings`
(values in effect), `resume` (an earlier run's), `train_files`, `trainers` and `run_training`, which
`demo` shares. `predict`, `quantize` and `inspect` load models by `saved_model`.
"""

import signal as _signal
from contextlib import suppress as _suppress

with _suppress(ValueError):  # not in the main thread
    # Ctrl-C during the imports ends the process without a traceback.
    _before = _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from sparsetrain.cli.app import main as main  # noqa: E402
from sparsetrain.cli.app import run_and_exit as run_and_exit  # noqa: E402

with _suppress(ValueError, NameError):
    _signal.signal(_signal.SIGINT, _before)

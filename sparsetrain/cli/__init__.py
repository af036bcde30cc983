# SPDX-License-Identifier: Apache-2.0
"""The `sparsetrain` command: thin commands over the library's public names.

Results go to stdout, everything else to stderr. Each command imports its modules when it runs, so
that `sparsetrain --help` answers without TVM, Arrow or NumPy.

`app` lists the commands and the exit codes of errors. For `train`, `options` and `settings` find
the values in effect, and `resume` those of an earlier run; `train_files`, `trainers` and
`run_training`, which `demo` also uses, do the work. `predict`, `quantize` and `inspect` load models
with `saved_model`.
"""

import signal as _signal
import threading as _threading

# Ctrl-C during the imports ends the process without a traceback.
_interruptible = (
    _threading.current_thread() is _threading.main_thread()
    and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
)
if _interruptible:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from sparsetrain.cli.app import main as main  # noqa: E402
from sparsetrain.cli.app import run_and_exit as run_and_exit  # noqa: E402

if _interruptible:
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)

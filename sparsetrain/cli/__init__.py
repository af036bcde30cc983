# SPDX-License-Identifier: Apache-2.0
"""The `sparsetrain` command: thin commands over the library's public names.

Results go to stdout, everything else to stderr. Each command imports what it needs when it runs,
so that `sparsetrain --help` answers without TVM, Arrow or NumPy.

`app` lists the commands and the exit codes of errors. `train` runs through `options` and `settings`
(values in effect), `resume` (an earlier run's), `train_files`, `trainers` and `run_training`, which
`demo` shares. `predict`, `quantize` and `inspect` load models by `saved_model`.
"""

from sparsetrain.cli.app import main as main
from sparsetrain.cli.app import run_and_exit as run_and_exit

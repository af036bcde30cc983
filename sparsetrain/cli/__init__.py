# SPDX-License-Identifier: Apache-2.0
"""The `sparsetrain` command: thin commands over the library's public names.

Results go to stdout, everything else to stderr. Each command imports what it needs when it runs,
so that `sparsetrain --help` answers without TVM, Arrow or NumPy.
"""

from sparsetrain.cli.app import main as main

# SPDX-License-Identifier: Apache-2.0
"""Entry point of `python -m sparsetrain`, which runs the `sparsetrain` command."""

from sparsetrain.cli import run_and_exit

if __name__ == "__main__":
    run_and_exit()

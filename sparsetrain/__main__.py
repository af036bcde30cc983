# SPDX-License-Identifier: Apache-2.0
"""Runs the `sparsetrain` command for `python -m sparsetrain`."""

from sparsetrain.cli import run_and_exit

if __name__ == "__main__":
    run_and_exit()

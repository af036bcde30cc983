# SPDX-License-Identifier: Apache-2.0
"""Lets `python -m sparsetrain` stand for the `sparsetrain` script."""

from sparsetrain.cli import run_and_exit

if __name__ == "__main__":
    run_and_exit()

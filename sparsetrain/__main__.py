# SPDX-License-Identifier: Apache-2.0
"""Lets `python -m sparsetrain` stand for the `sparsetrain` script."""

import sys

from sparsetrain.cli import main

if __name__ == "__main__":
    sys.exit(main())

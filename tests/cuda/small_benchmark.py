# SPDX-License-Identifier: Apache-2.0
"""`benchmarks/gpu.py` in sizes for the emulator: figures are there, their size means nothing.

python -m tests.cuda.small_benchmark rows --width 4 --rows 50 --lookups 100
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cuda import device, emulator

FOLDER = Path(__file__).parents[2] / "benchmarks"
# What is smaller here than on a device.
SMALLER = {
    "gpu": {"BATCHES": 2, "PLAN_SIZES": (30, 200), "PLAN_ROWS": 1000},
    "harness.gpu_timing": {"COPIED": 1024, "WARM": 1},
    "harness.gpu_rows": {
        "FLAT_ROWS": (50, 500),
        "FLAT_LOOKUPS": 40,
        "FLAT_CALLS": 2,
        "FLAT_TURNS": 2,
        "CALLS": 2,
    },
    "harness.gpu_step": {"TURNS": 1},
    "harness.gpu_products": {"LAYERS": ((40, 16, 24),), "CALLS": 2},
    "harness.gpu_sums": {"MATRICES": ((40, 12),), "CALLS": 2},
    "harness.gpu_agree": {"STEPS": 3},
}


def shrink(replace: Callable[[Any, str, Any], None] = setattr) -> Any:
    """Return the script with small sizes, from now on or until `replace` is undone."""
    for module, figures in SMALLER.items():
        for name, value in figures.items():
            replace(importlib.import_module(module), name, value)
    configs = importlib.import_module("harness.configs")
    small = configs.Config((20, 30), 4, (), (8,))
    for module in ("gpu", "harness.task"):  # who looks a name up
        replace(importlib.import_module(module), "CONFIGS", configs.CONFIGS | {"small": small})
    return importlib.import_module("gpu")


if __name__ == "__main__":
    if emulator.missing() is not None:
        sys.exit(emulator.missing())
    sys.path.insert(0, str(FOLDER))
    device.pretend_there_is_one()
    sys.exit(shrink().main())

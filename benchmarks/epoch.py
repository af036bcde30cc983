# SPDX-License-Identifier: Apache-2.0
"""Throughput of an epoch from parquet on disk, next to that of the step alone.

The same trainer is measured three ways on the same file: steps over batches that are in memory,
the loader without steps, and `Trainer.fit`. What fit keeps of the step's rows/s is what reading,
decoding and shuffling leave of it. Without --data, synthetic Criteo rows are written first, whose
categories are text; with --encoded they are converted to ids before anything is measured.

    python benchmarks/epoch.py
    python benchmarks/epoch.py --encoded
    python benchmarks/epoch.py --config small --batch 128 --data train.parquet --json
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.options import add_task_options


def main() -> int:
    """Measure, print, and return 0; or say in one line what is in the way and return 2."""
    options = _options()
    # Confined before anything is imported that counts cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    from harness.epoch import Epoch, encoded, measure, write_synthetic

    from sparsetrain.errors import SparsetrainError

    epoch = Epoch(options.config, options.batch, options.optimizer, options.threads)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = options.data or write_synthetic(Path(folder) / "rows.parquet", options.rows)
            if options.encoded:
                path = encoded(path, Path(folder) / "encoded")
            result = measure(path, epoch)
    except SparsetrainError as error:
        print(f"epoch.py: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result) if options.json else _describe(result))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_task_options(parser)
    parser.add_argument("--rows", type=int, default=1_000_000, help="synthetic rows to write")
    parser.add_argument(
        "--encoded", action="store_true", help="convert the rows first, as `sparsetrain convert`"
    )
    parser.add_argument("--data", type=Path, help="a parquet file to read instead")
    return parser.parse_args()


def _describe(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return "\n".join(
        [
            f"{result['config']}, B = {result['batch']}, {result['optimizer']}, "
            f"{machine['threads']} threads; {machine['cpu']}, {machine['date']}",
            f"step alone    {result['step_rows_per_s']:>9,.0f} rows/s",
            f"loader alone  {result['loader_rows_per_s']:>9,.0f} rows/s",
            f"fit           {result['fit_rows_per_s']:>9,.0f} rows/s over {result['rows']:,.0f} "
            f"rows, {result['share_of_step']:.0%} of the step alone",
            f"peak memory in fit: {result['state_gb']:.2f} GB of tables and slots, "
            f"{result['peak_gb_above_state']:.2f} GB above",
            f"others used {result['other_cores']:.2f} cores meanwhile"
            + (": DISTURBED, run it again" if result["disturbed"] else ""),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())

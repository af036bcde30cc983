# SPDX-License-Identifier: Apache-2.0
"""Files of the package that one warm act runs: a step, an encoding, an epoch, a conversion.

Each is a place that a reader of the act has to visit. ``python -m tests.acts`` prints them;
`tests.test_axes` holds their number.
"""

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd

import sparsetrain as st
from tests import small_dlrm

ROOT = f"{Path(st.__file__).parent}/"


def calls_of(function: Callable[[], object]) -> Counter[str]:
    """Python calls in each file of the package while a function runs, in all threads it starts."""
    calls: Counter[str] = Counter()

    def note(frame, event, argument):
        if event == "call":
            calls[frame.f_code.co_filename] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Counter({f.removeprefix(ROOT): n for f, n in calls.items() if f.startswith(ROOT)})


def acts(folder: Path) -> dict[str, Callable[[], object]]:
    """Return the acts of this page, on a parquet file and a text file of the same rows."""
    logs = st.data.SyntheticCriteo(seed=0)
    rows, text = folder / "rows.parquet", folder / "rows.tsv"
    logs.write(rows, 3_000)
    logs.write(text, 3_000)
    frame = pd.read_parquet(rows).head(100)
    encoder = st.data.Encoder.fit(rows)
    trainer, batch = small_dlrm.trainer(), small_dlrm.batch(8)
    return {
        "step": lambda: trainer.step(batch),
        "encode": lambda: encoder.encode(frame),
        "Encoder.fit": lambda: st.data.Encoder.fit(rows),
        "epoch": lambda: list(st.data.Dataset(rows, encoder).batches(128)),
        "convert": lambda: st.data.convert_files(text, tempfile.mkdtemp(dir=folder) + "/rows"),
    }


def files_of(act: Callable[[], object]) -> list[str]:
    """Return the files that an act runs when it is done for the second time."""
    act()
    return sorted(calls_of(act))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name, act in acts(Path(folder)).items():
            files = files_of(act)
            sys.stdout.write(f"{name}: {len(files)} files\n    {' '.join(files)}\n")

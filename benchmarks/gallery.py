# SPDX-License-Identifier: Apache-2.0
"""Click models with their default sizes on the same rows: AUC, cost of a step, losses by PyTorch.

Each is trained for one epoch in batches of 128 with Adagrad at 0.02 and scored on other rows. A
step's milliseconds are processor time, the median of 50, which others on the machine do not
lengthen much. Where PyTorch is installed, 50 steps of the same model from the same weights on the
same batches say how far losses are apart.

    python -m benchmarks.gallery train.parquet test.parquet
    python -m benchmarks.gallery --synthetic 200000
    peers/bin/python -m benchmarks.gallery train.parquet test.parquet --models fm,deepfm
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

import sparsetrain as st

KINDS = (
    *("lr", "fm", "fwfm", "widedeep", "deepfm", "dcn", "dcnv2", "xdeepfm", "autoint", "finalmlp"),
    *("dlrm", "dlrm cross"),
)
BATCH, STEPS = 128, 50
# Adagrad that starts at 1 has no steps of full size, which would drive rounding apart.
ALIKE = {"lr": 0.02, "eps": 1e-8}


def main() -> None:
    """Train each model and print a row of the table for it."""
    options = _options()
    st.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        train, test = options.files or _synthetic(options.synthetic, Path(folder))
        encoder = st.data.Encoder.fit(train, min_count=5)
        print("| model | AUC | logloss | step, ms | losses apart |")
        print("| --- | --- | --- | --- | --- |")
        for name in options.models.split(","):
            row = measure(name, encoder, train, test)
            print(json.dumps(row) if options.json else _line(row), flush=True)


def measure(name: str, encoder: st.data.Encoder, train: Any, test: Any) -> dict[str, Any]:
    """Return scores, milliseconds of a step and the largest difference of losses."""
    trainer = _trainer(name, encoder, st.optim.adagrad(0.02))
    trainer.fit(train, batch_size=BATCH, progress=None)
    scores = trainer.evaluate(test)
    batches = [*islice(st.data.Dataset(train, encoder).batches(BATCH), STEPS)]
    times = [_timed(trainer.step, batch) for batch in batches]
    return {
        "model": name,
        **{score: float(scores[score]) for score in ("auc", "logloss")},
        "step_ms": 1e3 * statistics.median(times),
        "apart": _apart(name, encoder, batches),
    }


def _trainer(name: str, encoder: st.data.Encoder, optimizer: st.optim.Optimizer) -> st.Trainer:
    kind, _, interaction = name.partition(" ")
    options = {"interaction": interaction, "cross_rank": 16} if interaction else {}
    model = st.models.MODELS[kind](**encoder.model_arguments, **options)
    return st.Trainer(model, optimizer, encoder=encoder)


def _timed(step: Callable[[st.Batch], Any], batch: st.Batch) -> float:
    begin = process_time()
    float(step(batch))
    return process_time() - begin


def _apart(name: str, encoder: st.data.Encoder, batches: list[st.Batch]) -> float | None:
    """Return the largest difference between our losses and PyTorch's, None without PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    trainer = _trainer(name, encoder, st.optim.adagrad(initial=1.0, **ALIKE))
    peer, loss = _peer(name, trainer)
    optimizer = torch.optim.Adagrad(peer.parameters(), initial_accumulator_value=1.0, **ALIKE)
    apart = []
    for batch in batches:
        optimizer.zero_grad()
        theirs = loss(batch)
        theirs.backward()
        optimizer.step()
        apart.append(abs(float(trainer.step(batch)) - theirs.item()))
    return max(apart)


def _peer(name: str, trainer: st.Trainer) -> tuple[Any, Callable[[st.Batch], Any]]:
    """Return the same model in PyTorch with the trainer's weights, and its loss of a batch."""
    import torch

    state, config = trainer.state_dict(), trainer.model.config()
    if name.startswith("dlrm"):
        from tests.peers.torch_dlrm import TorchDLRM

        own = TorchDLRM(state, config)
        return own, own.loss
    from tests.peers.torch_models import TorchModel

    peer = TorchModel(name, state, config)

    def loss(batch: st.Batch) -> Any:
        logits = peer(torch.tensor(batch.dense), torch.tensor(batch.ids.astype(np.int64)))
        labels = torch.tensor(batch.labels)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)

    return peer, loss


def _synthetic(rows: int, folder: Path) -> tuple[str, str]:
    """Write synthetic rows to train on, and a fifth as many to score."""
    import pyarrow.parquet as pq

    made, paths = st.data.SyntheticCriteo(seed=0), []
    for number, count in enumerate((rows, rows // 5)):
        paths.append(str(folder / f"{number}.parquet"))
        pq.write_table(made.chunk(number, rows=count), paths[-1])
    return paths[0], paths[1]


def _line(row: dict[str, Any]) -> str:
    apart = "" if row["apart"] is None else f"{row['apart']:.0e}"
    cells = f"{row['auc']:.4f} | {row['logloss']:.4f} | {row['step_ms']:.2f}"
    return f"| {row['model']} | {cells} | {apart} |"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gallery",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="rows to train on, and to score")
    parser.add_argument("--synthetic", type=int, default=1_000_000, metavar="ROWS")
    parser.add_argument("--models", default=",".join(KINDS), help="some of them, as in lr,fm")
    parser.add_argument("--threads", type=int, default=st.runtime.num_threads())
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if len(options.files) not in (0, 2):
        parser.error("give two files, or none for synthetic rows")
    return options


if __name__ == "__main__":
    main()

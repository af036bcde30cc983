# SPDX-License-Identifier: Apache-2.0
"""Accuracy of bfloat16: gradients against float64, and AUC against float32.

    python benchmarks/precision.py gradients --config kaggle --peer-python peers/bin/python
    python benchmarks/precision.py auc
    SPARSETRAIN_SAMPLE_DATA=samples python benchmarks/precision.py auc --data sample

`gradients` computes those of a few batches from the same weights: ours in bf16 and in float32,
PyTorch's in float64 and under autocast, as they are at first and after some steps of training. An
error is ``|g - g64| / |g64|`` of a parameter; a group's is the mean over its parameters and the
batches. `auc` trains in both precisions from several seeds and compares what each seed scores.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.configs import CONFIGS
from harness.options import positive

FOLDER = Path(__file__).parent
PRECISIONS = ("float32", "bf16")
TRAIN_ROWS, TEST_ROWS = 200_000, 100_000  # of synthetic rows
MOST_IDS = 5_000  # of a synthetic column, so that two hundred thousand rows teach something


def main() -> int:
    """Measure and print."""
    options = _options()
    measure, show = {"gradients": (gradients, _show_gradients), "auc": (auc, _show_auc)}[
        options.what
    ]
    result = measure(options)
    print(json.dumps(result) if options.json else show(result))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["gradients", "auc"])
    parser.add_argument("--config", choices=CONFIGS, default="kaggle")
    parser.add_argument("--batch", type=positive, default=2048, help="rows of a step")
    parser.add_argument("--batches", type=positive, default=3, help="whose gradients are compared")
    parser.add_argument("--steps", type=positive, default=300, help="of training before them")
    parser.add_argument("--lr", type=float, default=0.02, help="of training for an AUC")
    parser.add_argument("--seeds", type=positive, default=5, help="of training for an AUC")
    parser.add_argument("--data", choices=["synthetic", "sample"], default="synthetic")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter with PyTorch")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


# --- Gradients ----------------------------------------------------------------------------------


def gradients(options: argparse.Namespace) -> dict[str, Any]:
    """Errors of each arm by group of parameters, at first and after training."""
    from harness.batches import make_batches
    from harness.ours import as_batch, build_trainer

    config = replace(CONFIGS[options.config], rows=(10_000,) * CONFIGS[options.config].features)
    trainer = build_trainer(config, "sgd")
    batches = [as_batch(a) for a in make_batches(config, options.batch, 20 + options.batches)]
    found = {"at first": _errors(trainer, batches[20:], options)}
    for step in range(options.steps):
        trainer.step(batches[step % 20])
    found[f"after {options.steps} steps"] = _errors(trainer, batches[20:], options)
    return {"config": options.config, "batch": options.batch, "errors": found}


def _errors(trainer: Any, batches: list[Any], options: argparse.Namespace) -> dict[str, Any]:
    sums: dict[tuple[str, str], list[float]] = {}
    for batch in batches:
        peers, ours = _peers(trainer, batch, options), _ours(trainer, batch)
        exact = peers.pop("float64")
        for arm, all_of_arm in {**ours, **peers}.items():
            for name, gradient in all_of_arm.items():
                error = _relative(gradient, exact[name])
                sums.setdefault((arm, _group(name)), []).append(error)
                sums.setdefault((arm, "all"), []).append(error)
    arms = dict.fromkeys(arm for arm, _ in sums)
    return {
        arm: {group: statistics.mean(e) for (a, group), e in sums.items() if a == arm}
        for arm in arms
    }


def _relative(gradient: Any, exact: Any) -> float:
    import numpy as np

    return float(np.linalg.norm(gradient - exact) / np.linalg.norm(exact))


def _group(name: str) -> str:
    """The last layer, which no precision rounds, by itself; weights and biases apart."""
    part, _, kind = name.partition(".")
    return f"{part} {kind.rpartition('.')[2]}" if kind else part


def _ours(trainer: Any, batch: Any) -> dict[str, dict[str, Any]]:
    import numpy as np

    import sparsetrain as st
    from sparsetrain.runtime import as_numpy

    module, inputs = trainer.model.export(), trainer.model.inputs(batch)
    found: dict[str, dict[str, Any]] = {}
    for precision in PRECISIONS:
        policy = st.precision.policy_for(precision, trainer.target)
        program = st.value_and_grad(module, "loss", target=trainer.target, precision=policy)
        _, by_name = program(trainer.params, inputs)
        values = {n: as_numpy(getattr(g, "values", g)) for n, g in by_name.items()}
        table = next(n for n in values if n.startswith("embeddings."))
        shape = (*batch.ids.shape, values[table].shape[-1])
        values["embeddings"] = values.pop(table).reshape(shape)
        found[f"ours {precision}"] = {n: v.astype(np.float64) for n, v in values.items()}
    return found


def _peers(trainer: Any, batch: Any, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    import numpy as np

    from sparsetrain.runtime import as_numpy

    table = next(n for n in trainer.params if n.startswith("embeddings."))
    given = {n: as_numpy(p) for n, p in trainer.params.items() if n != table}
    rows = trainer.model.inputs(batch)["rows"]
    given |= {"embeddings": as_numpy(trainer.params[table])[rows]}
    given |= {"dense": batch.dense, "labels": batch.labels}
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / name) for name in ("input.npz", "output.npz")]
        np.savez(paths[0], **given)
        python = os.path.abspath(options.peer_python) if os.sep in options.peer_python else None
        command = [python or options.peer_python, "-m", "harness.torch_gradients"]
        subprocess.run([*command, *paths, options.config], check=True, cwd=FOLDER)
        with np.load(paths[1]) as arrays:
            found: dict[str, dict[str, Any]] = {}
            for key in arrays.files:
                arm, _, name = key.partition("/")
                found.setdefault(arm if arm == "float64" else f"torch {arm}", {})[name] = arrays[
                    key
                ]
    return found


def _show_gradients(result: dict[str, Any]) -> str:
    lines = [f"{result['config']}, B = {result['batch']}: mean |g - g64| / |g64|"]
    for when, arms in result["errors"].items():
        groups = list(next(iter(arms.values())))
        lines += ["", when, " " * 16 + "".join(f"{group:>16}" for group in groups)]
        for arm, errors in arms.items():
            lines.append(f"{arm:16}" + "".join(f"{errors[group]:>16.2e}" for group in groups))
    return "\n".join(lines)


# --- AUC ----------------------------------------------------------------------------------------


def auc(options: argparse.Namespace) -> dict[str, Any]:
    """AUC of both precisions from every seed, and how far they are apart."""
    import sparsetrain as st

    with tempfile.TemporaryDirectory() as folder:
        train, test = _files(options.data, Path(folder))
        encoder = st.data.Encoder.fit(train)
        found = {p: [_auc(p, seed, (train, test), encoder, options) for seed in
                     range(options.seeds)] for p in PRECISIONS}  # fmt: skip
    pairs = zip(found["bf16"], found["float32"], strict=True)
    apart = [half - single for half, single in pairs]
    return {
        "config": options.config,
        "data": options.data,
        "batch": _batch(options),
        "lr": options.lr,
        "auc": found,
        "mean": {p: statistics.mean(values) for p, values in found.items()},
        "deviation": {p: _deviation(values) for p, values in found.items()},
        "difference": statistics.mean(apart),
        "its_standard_error": _deviation(apart) / len(apart) ** 0.5,
    }


def _deviation(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else float("nan")


def _files(data: str, folder: Path) -> tuple[str, str]:
    import sparsetrain as st

    if data == "sample":
        samples = os.environ.get("SPARSETRAIN_SAMPLE_DATA")
        if samples is None:
            raise SystemExit("precision.py: SPARSETRAIN_SAMPLE_DATA names no folder of samples")
        names = ("criteo_kaggle_train.parquet", "criteo_kaggle_test.parquet")
        train, test = (str(Path(samples) / name) for name in names)
        return train, test
    rows = st.data.SyntheticCriteo(seed=1, max_cardinality=MOST_IDS)
    train, test = str(folder / "train.parquet"), str(folder / "test.parquet")
    rows.write(train, TRAIN_ROWS)
    rows.write(test, TEST_ROWS, first_chunk=100)
    return train, test


def _batch(options: argparse.Namespace) -> int:
    """Small enough that the data are some hundreds of steps."""
    return min(options.batch, 512 if options.data == "synthetic" else 128)


def _auc(
    precision: str, seed: int, files: tuple[str, str], encoder: Any, options: argparse.Namespace
) -> float:
    import sparsetrain as st

    config = CONFIGS[options.config]
    model = st.models.DLRM(
        rows=encoder.rows,
        dim=config.dim,
        bottom=config.bottom,
        top=config.top,
        num_dense=encoder.num_dense,
        names=encoder.columns,
        **config.interaction,
    )
    trainer = st.Trainer(
        model,
        st.optim.adagrad(options.lr),
        target="cpu",
        seed=seed,
        encoder=encoder,
        precision=precision,
    )
    trainer.fit(files[0], batch_size=_batch(options), progress=None)
    score: float = trainer.evaluate(files[1])["auc"]
    print(f"{precision}, seed {seed}: {score:.5f}", file=sys.stderr)
    return score


def _show_auc(result: dict[str, Any]) -> str:
    return "\n".join(_auc_lines(result))


def _auc_lines(result: dict[str, Any]) -> Iterator[str]:
    how = f"B = {result['batch']}, lr = {result['lr']:g}"
    yield f"{result['config']} on {result['data']} rows, {how}"
    for precision, values in result["auc"].items():
        each = " ".join(f"{value:.5f}" for value in values)
        mean, spread = result["mean"][precision], result["deviation"][precision]
        yield f"{precision:8} {each}  mean {mean:.5f}, deviation {spread:.5f}"
    yield (
        f"bf16 - float32, seed by seed: {result['difference']:+.5f}, "
        f"standard error {result['its_standard_error']:.5f}"
    )


if __name__ == "__main__":
    sys.exit(main())

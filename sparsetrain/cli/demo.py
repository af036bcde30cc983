# SPDX-License-Identifier: Apache-2.0
"""Synthetic data with a known best score: `sparsetrain generate`, and a DLRM trained on it, `demo`.

The generator knows the true click probability of every row, so the AUC and logloss of these
probabilities are a ceiling that no model can exceed; a constant prediction is the floor.
"""

import math
import os
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetrain.cli.options import AsJson, SettingOptions
from sparsetrain.cli.output import emit, format_score, format_table, note
from sparsetrain.cli.output_files import require_free, require_writable
from sparsetrain.cli.run_training import run_training
from sparsetrain.cli.settings.resolve import Entry
from sparsetrain.cli.stop import StopSignals
from sparsetrain.cli.train import describe_work
from sparsetrain.cli.train_files import Files
from sparsetrain.errors import ConfigError
from sparsetrain.training.progress import format_count

_CHUNK_ROWS = 65_536

_Rows = Annotated[int, typer.Option("--rows", min=1000, help="Rows to train on.")]
_HeldOut = Annotated[int, typer.Option("--held-out", min=1000, help="Rows of each test file.")]
_Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of data, weights and row order.")]
_Folder = Annotated[
    Path | None, typer.Option("--folder", help="Keep data and model in this new folder.")
]


def demo(
    rows: _Rows = 1_000_000,
    held_out: _HeldOut = 50_000,
    seed: _Seed = 0,
    folder: _Folder = None,
    as_json: AsJson = False,
) -> None:
    """Train on synthetic rows with a known best possible score."""
    if folder is not None:
        require_free(folder, "--folder")
    settings = SettingOptions([Entry("train.seed", seed, "--seed")]).resolve()
    directory = tempfile.TemporaryDirectory() if folder is None else nullcontext(str(folder))
    with StopSignals() as stop, directory as name:
        os.makedirs(name, exist_ok=True)
        files, ceiling = _write_data(Path(name), rows, held_out, seed, keep=folder is not None)
        result = run_training(settings, files, stop, out_option="--folder")
        stop.raise_if_requested()
    result = {**result, "ceiling": ceiling, "verdict": _verdict(result["test"], ceiling)}
    emit(result, _describe(result), as_json)


def _write_data(
    folder: Path, rows: int, held_out: int, seed: int, keep: bool
) -> tuple[Files, dict[str, float]]:
    """Write three parquet files of new chunks; return them and the ceiling of the test file."""
    import sparsetrain as st

    generator = st.data.SyntheticCriteo(seed)
    sizes = {"train": rows, "valid": held_out, "test": held_out}
    paths = {name: folder / f"{name}.parquet" for name in sizes}
    chunk = 0
    for name, size in sizes.items():
        note(f"writing {size:,} synthetic rows for {name}")
        truth = generator.write(paths[name], size, first_chunk=chunk, chunk_rows=_CHUNK_ROWS)
        chunk += math.ceil(size / _CHUNK_ROWS)  # files with different chunks share no rows
    out = folder / "model" if keep else None
    files = Files([paths["train"]], paths["valid"], paths["test"], out)
    return files, {"auc": truth.auc, "logloss": truth.logloss}


def _verdict(test: dict[str, Any], ceiling: dict[str, float]) -> str:
    """Judge the result by its share of the possible gain."""
    floor, best = test["constant_logloss"], ceiling["logloss"]
    if test["logloss"] >= floor:
        return "The training failed: the model is no better than a constant."
    share = (floor - test["logloss"]) / (floor - best)
    if share > 1:
        return "Better than the truth itself: the test data leaked into the training."
    return f"Learnt: {share:.0%} of the way from a constant to the best possible logloss."


def _describe(result: dict[str, Any]) -> str:
    test, ceiling = result["test"], result["ceiling"]
    rows = [
        ["test data", "AUC", "logloss"],
        ["a constant", "0.5000", format_score(test["constant_logloss"])],
        ["the trained DLRM", format_score(test["auc"]), format_score(test["logloss"])],
        ["best possible", format_score(ceiling["auc"]), format_score(ceiling["logloss"])],
    ]
    lines = [
        describe_work(result),
        "",
        format_table(rows),
        "",
        result["verdict"],
    ]
    if result["out"]:
        data = Path(result["out"]).with_name("test.parquet")
        lines.append(f"Next: sparsetrain evaluate {result['out']} {data}")
    return "\n".join(lines)


def generate(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="A .parquet or .tsv file; replaced.")],
    rows: Annotated[int, typer.Option(min=1, help="Number of rows.")] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of ids, weights and rows.")] = 0,
    first_chunk: Annotated[
        int, typer.Option(min=0, help="Files with one seed and different chunks share no rows.")
    ] = 0,
    chunk_rows: Annotated[int, typer.Option(min=1, help="Rows of a chunk.")] = _CHUNK_ROWS,
    click_rate: Annotated[float, typer.Option(help="Mean probability of a click.")] = 0.256,
    bayes_auc: Annotated[float, typer.Option(help="Best possible AUC.")] = 0.80,
    max_cardinality: Annotated[
        int | None, typer.Option(help="Most distinct ids of a column; Criteo's by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write synthetic Criteo rows with a known best possible score."""
    import sparsetrain as st

    if out.suffix.lower() not in (".parquet", ".tsv"):
        raise ConfigError(f"{out}: unsupported file type: use *.parquet or *.tsv")
    require_writable(out)
    with StopSignals():
        generator = st.data.SyntheticCriteo(
            seed, click_rate=click_rate, bayes_auc=bayes_auc, max_cardinality=max_cardinality
        )
        out.parent.mkdir(parents=True, exist_ok=True)
        truth = generator.write(out, rows, first_chunk=first_chunk, chunk_rows=chunk_rows)
    next_chunk = first_chunk + -(-rows // chunk_rows)
    result = {"out": str(out), "next_chunk": next_chunk, **truth._asdict()}
    text = (
        f"{format_count(rows, 'row')} in {out}; best possible: AUC {truth.auc:.4f}, "
        f"logloss {truth.logloss:.4f}\n"
        f"To write other rows: sparsetrain generate OTHER --seed {seed} "
        f"--first-chunk {next_chunk}"
    )
    emit(result, text, as_json)

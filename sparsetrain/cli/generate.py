# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain generate`: synthetic Criteo rows with a known best possible score."""

from pathlib import Path
from typing import Annotated

import typer

from sparsetrain.cli.options import AsJson
from sparsetrain.cli.output import emit
from sparsetrain.cli.output_files import require_writable
from sparsetrain.cli.stop import StopSignals
from sparsetrain.errors import ConfigError
from sparsetrain.training.progress import format_count


def generate(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="A .parquet or .tsv file; replaced.")],
    rows: Annotated[int, typer.Option(min=1, help="Number of rows.")] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of ids, weights and rows.")] = 0,
    first_chunk: Annotated[
        int, typer.Option(min=0, help="Files with one seed and different chunks share no rows.")
    ] = 0,
    chunk_rows: Annotated[int, typer.Option(min=1, help="Rows of a chunk.")] = 65_536,
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
        raise ConfigError(f"{out}: the file is parquet or text; name it *.parquet or *.tsv")
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

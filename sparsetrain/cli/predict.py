# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain predict`: one probability per row, in the order of the rows."""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsetrain.cli.options import (
    AsJson,
    BatchSize,
    Model,
    Precision,
    WarnUnseen,
    Which,
    settings_from,
)
from sparsetrain.cli.output import emit
from sparsetrain.cli.own_class import OwnClass
from sparsetrain.cli.preflight import require_writable
from sparsetrain.cli.replaced import replaced
from sparsetrain.cli.stop import StopSignals
from sparsetrain.cli.unseen import tell_unseen
from sparsetrain.cli.which import predictor_of
from sparsetrain.errors import ConfigError, DataError

PROBABILITY = "probability"

if TYPE_CHECKING:
    import pyarrow as pa


def predict(
    model: Model,
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="Rows, parquet or text.")],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="Where to write: .parquet or .csv; replaced."),
    ],
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="COLUMN", help="Write this column of ROWS too; may be repeated."
        ),
    ] = None,
    which: Which = "auto",
    batch_size: BatchSize = 4096,
    precision: Precision = None,
    warn_unseen: WarnUnseen = None,
    own: OwnClass = None,
    as_json: AsJson = False,
) -> None:
    """Write the click probability of every row."""
    import pyarrow as pa

    import sparsetrain as st

    write = _writer_for(out, rows)
    if PROBABILITY in (keep or ()):
        raise ConfigError(f"--keep {PROBABILITY}: that is what predictions are called")
    limit = settings_from({"--warn-unseen": warn_unseen}, None, None).data.warn_unseen
    with StopSignals():
        predictor = predictor_of(model, which, precision, own)
        dataset = st.data.Dataset(str(rows), predictor.encoder, require_label=False)
        read_kept = _columns(rows, predictor.encoder, list(dict.fromkeys(keep or ())))
        probability = predictor.predict(dataset, batch_size=batch_size)
        kept = read_kept()
        with replaced(out) as draft:
            write(pa.table({**kept, PROBABILITY: probability}), str(draft))
    count, mean = len(probability), float(probability.mean(dtype="float64"))
    unseen = tell_unseen(dataset, predictor.encoder, limit)
    result = {"rows": count, "out": str(out), "mean_probability": mean, **unseen}
    emit(result, f"{count:,} probabilities, mean {mean:.4f}, written to {out}", as_json)


def _columns(rows: Path, encoder: Any, names: list[str]) -> Callable[[], dict[str, Any]]:
    """Look for columns of the rows; return what reads them as they are stored, by name."""
    import sparsetrain as st

    if not names:
        return dict
    source = st.data.open_source(str(rows), encoder.schema)
    assert isinstance(source, st.data.Source)  # of paths
    lacking = [(p, n) for p in source.parts for n in names if n not in p.schema.names]
    if lacking:
        part, name = lacking[0]
        raise DataError(f"{part.place.name}: column {name}: --keep names it, and it is not there")
    return partial(_read, source.parts, names)


def _read(parts: Iterable[Any], names: list[str]) -> dict[str, Any]:
    import pyarrow as pa

    pieces = [pa.Table.from_batches([piece]) for part in parts for _, piece in part.pieces(names)]
    return {name: _joined(name, [piece[name] for piece in pieces]) for name in names}


def _joined(name: str, columns: list[Any]) -> Any:
    """Return one column of those of all files, which may store the same values differently.

    Raises
    ------
    DataError
        If they hold what has no type in common.
    """
    import pyarrow as pa

    if len({column.type for column in columns}) > 1:
        columns = [as_text(_plain(column)) for column in columns]
    tables = [pa.table({name: column}) for column in columns]
    try:
        return as_text(pa.concat_tables(tables, promote_options="permissive")[name])
    except pa.ArrowException:
        types = " and ".join(sorted({str(column.type) for column in columns}))
        raise DataError(
            f"--keep {name}: its files hold {types}, which make no column; predict them one by one"
        ) from None


def _plain(column: Any) -> Any:
    """Return a column without codes, its text and bytes in Arrow's usual types."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    usual = _USUAL.get(str(column.type))
    return column if usual is None else column.cast(usual)


_USUAL = {
    "large_string": "string",
    "string_view": "string",
    "large_binary": "binary",
    "binary_view": "binary",
}


def as_text(column: Any) -> Any:
    """Return a column of bytes, which is how text files are read, as text where it is text."""
    import pyarrow as pa

    if not pa.types.is_binary(column.type):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return column


def _writer_for(out: Path, rows: Path) -> Callable[["pa.Table", str], None]:
    writer = _WRITERS.get(out.suffix.lower())
    if writer is None:
        raise ConfigError(f"--out {out}: predictions end in {' or '.join(_WRITERS)}")
    if out.is_dir() or (out.exists() and rows.exists() and out.samefile(rows)):
        raise ConfigError(f"--out {out}: is a folder or the input itself; name another file")
    require_writable(Path(os.path.realpath(out)))
    return writer


def _write_parquet(table: "pa.Table", path: str) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, path, write_page_checksum=True)


def _write_csv(table: "pa.Table", path: str) -> None:
    import pyarrow.csv as csv

    csv.write_csv(table, path)


_WRITERS = {".parquet": _write_parquet, ".csv": _write_csv}

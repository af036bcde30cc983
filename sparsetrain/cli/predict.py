# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain evaluate`: scores of a saved model; `predict`: one probability per row, in order."""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsetrain.cli.options import AsJson, BatchSize, SettingOptions, with_settings
from sparsetrain.cli.output import emit, format_scores, warn_if_useless
from sparsetrain.cli.output_files import replace_file, require_writable
from sparsetrain.cli.ranking import IS_RANKING, rows_to_rank
from sparsetrain.cli.saved_model import (
    Checkpoint,
    ModelClass,
    ModelFolder,
    Precision,
    load_by,
    warn_unseen,
)
from sparsetrain.cli.stop import StopSignals
from sparsetrain.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

    import sparsetrain as st

PROBABILITY = "probability"


@with_settings("--warn-unseen", "--user", "--item", "--time-column", "--k", general=False)
def evaluate(
    settings: SettingOptions,
    model: ModelFolder,
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Labelled rows, parquet or text; for a ranking a log, in which the last "
            "item of each user is ranked.",
        ),
    ],
    checkpoint: Checkpoint = "auto",
    batch_size: BatchSize = 4096,
    group_by: Annotated[
        str | None,
        typer.Option(
            "--group-by",
            metavar="FEATURE",
            help="Also score rows grouped by this feature, such as the user (gauc).",
        ),
    ] = None,
    by_weights: Annotated[
        bool,
        typer.Option("--by-weights", help="Weight rows by the weight column of the training."),
    ] = False,
    precision: Precision = None,
    model_class: ModelClass = None,
    as_json: AsJson = False,
) -> None:
    """Score a model on labelled data."""
    import sparsetrain as st

    resolved = settings.resolve(IS_RANKING)
    with StopSignals():
        predictor = load_by(st.load_predictor, model, checkpoint, model_class, precision=precision)
        needs_labels = bool(predictor.model.all_labels)
        rows: Any = str(data)
        if not needs_labels:
            rows = rows_to_rank(resolved, data, predictor.encoder)
        elif predictor.encoder is not None:
            rows = _labelled(model, data, predictor.encoder.schema)
        dataset = st.data.Dataset(
            rows, predictor.encoder, require_label=needs_labels, read_weights=by_weights
        )
        asks = not needs_labels or "--k" in settings.flags()
        lists = {"k": resolved.train.k} if asks else {}
        scores = predictor.evaluate(
            dataset, batch_size=batch_size, group_by=group_by, by_weights=by_weights, **lists
        )
    warn_if_useless(data.name, scores)
    unseen = warn_unseen(dataset, predictor.encoder, resolved.data.warn_unseen)
    emit({**scores, **unseen}, format_scores({data.name: scores}), as_json)


def _labelled(model: Path, data: Path, schema: "st.data.Schema") -> Any:
    """Open data; refuse rows without labels."""
    import sparsetrain as st

    source = st.data.open_source(str(data), schema)
    try:
        st.data.require_labels(source, schema)
    except DataError as error:
        raise DataError(
            f"{error}; rows without labels: sparsetrain predict {model} {data} --out FILE"
        ) from None
    return source


@with_settings("--warn-unseen", general=False)
def predict(
    settings: SettingOptions,
    model: ModelFolder,
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="Rows, parquet or text.")],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="File to write, .parquet or .csv; replaced."),
    ],
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="COLUMN", help="Copy this column of ROWS as well; may be repeated."
        ),
    ] = None,
    checkpoint: Checkpoint = "auto",
    batch_size: BatchSize = 4096,
    precision: Precision = None,
    model_class: ModelClass = None,
    as_json: AsJson = False,
) -> None:
    """Write predictions: a click probability per row, or a column per label."""
    import pyarrow as pa

    import sparsetrain as st

    require_output(out, rows)
    limit = settings.resolve().data.warn_unseen
    with StopSignals():
        predictor = load_by(st.load_predictor, model, checkpoint, model_class, precision=precision)
        columns = predictor.prediction_names
        if taken := next((name for name in keep or () if name in columns), None):
            raise ConfigError(
                f"--keep {taken}: a prediction column has the same name; rename the column in the "
                "data"
            )
        encoder = predictor.encoder
        source = st.data.open_source(str(rows), encoder.schema if encoder else None)
        dataset = st.data.Dataset(source, encoder, require_label=False)
        read_kept = _kept_columns(source, list(dict.fromkeys(keep or ())))
        found = predictor.predict(dataset, batch_size=batch_size)
        predicted = dict(zip(columns, found.reshape(len(found), -1).T, strict=True))
        kept = read_kept()
        with replace_file(out) as draft:
            write_table(pa.table({**kept, **predicted}), draft)
    count = len(found)
    means = {name: float(column.mean(dtype="float64")) for name, column in predicted.items()}
    unseen = warn_unseen(dataset, encoder, limit)
    result = {"rows": count, "out": str(out)}
    result |= {f"mean_{name}": mean for name, mean in means.items()} | unseen
    if columns == [PROBABILITY]:
        said = f"{count:,} probabilities, mean {means[PROBABILITY]:.4f}, written to {out}"
    else:
        each = ", ".join(f"{name} {mean:.4f}" for name, mean in means.items())
        said = f"predictions of {count:,} rows, means {each}, written to {out}"
    emit(result, said, as_json)


def _kept_columns(source: Any, names: list[str]) -> Callable[[], dict[str, Any]]:
    """Check that the columns exist; return a function that reads them unchanged, by name."""
    if not names:
        return dict
    for part in source.parts:
        if missing := [name for name in names if name not in part.schema.names]:
            raise DataError(
                f"{part.location.name}: no column {', '.join(missing)}, which --keep names"
            )
    return partial(_read, source.parts, names)


def _read(parts: Iterable[Any], names: list[str]) -> dict[str, Any]:
    import pyarrow as pa

    pieces = [pa.Table.from_batches([piece]) for part in parts for _, piece in part.pieces(names)]
    return {name: _concatenate(name, [piece[name] for piece in pieces]) for name in names}


def _concatenate(name: str, columns: list[Any]) -> Any:
    """Concatenate one column of all files, which may store the same values differently."""
    import pyarrow as pa

    if len({column.type for column in columns}) > 1:
        columns = [as_text(_decode(column)) for column in columns]
    tables = [pa.table({name: column}) for column in columns]
    try:
        return as_text(pa.concat_tables(tables, promote_options="permissive")[name])
    except pa.ArrowException:
        types = " and ".join(sorted({str(column.type) for column in columns}))
        raise DataError(
            f"--keep {name}: the files have different types, {types}: predict them one by one"
        ) from None


def _decode(column: Any) -> Any:
    """Return a column without dictionary codes, with text and bytes in Arrow's common types."""
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
    """Convert a column of bytes, as read from text files, to text if it is valid UTF-8."""
    import pyarrow as pa

    if not pa.types.is_binary(column.type):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return column


def require_output(out: Path, rows: Path) -> None:
    """Refuse an output that cannot be written, or that is one of the input files."""
    if out.suffix.lower() not in (".parquet", ".csv"):
        raise ConfigError(f"--out {out}: unsupported file type: use .parquet or .csv")
    written, read = Path(os.path.realpath(out)), Path(os.path.realpath(rows))
    if out.is_dir() or read in (written, *written.parents):
        raise ConfigError(
            f"--out {out}: is a folder, the input file, or a file in the input folder; name a "
            "different file"
        )
    require_writable(written)


def write_table(table: "pa.Table", path: Path) -> None:
    """Write parquet or CSV, by the suffix."""
    with open(path, "wb") as file:  # Arrow cannot open a path that is not UTF-8
        if path.suffix.lower() == ".parquet":
            import pyarrow.parquet as pq

            pq.write_table(table, file, write_page_checksum=True)
        else:
            import pyarrow.csv as csv

            csv.write_csv(table, file)

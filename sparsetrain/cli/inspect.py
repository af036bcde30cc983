# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain inspect`: one-screen summary of a dataset, an encoder, a model or a run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsetrain.cli.options import AsJson, setting_type
from sparsetrain.cli.output import emit, format_share, format_table
from sparsetrain.cli.saved_model import ModelClass
from sparsetrain.cli.settings.model_class import import_class
from sparsetrain.cli.stop import StopSignals
from sparsetrain.errors import ConfigError
from sparsetrain.training.progress import format_count

if TYPE_CHECKING:
    import sparsetrain as st

_MODEL_FILES = ("manifest.json", "LATEST")
_SHOWN = 40
# Entries of a configuration that the list of tables already shows.
_IN_TABLES = ("rows", "names", "table_dtype", "share_embedding")

Summary = tuple[dict[str, Any], str]


def inspect(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="Data, a converted folder, encoder, model, run.")
    ],
    schema: setting_type("--schema") = None,  # type: ignore[valid-type]
    max_rows: Annotated[
        int, typer.Option("--max-rows", min=1, help="Read about this many rows of data.")
    ] = 1_000_000,
    model_class: ModelClass = None,
    as_json: AsJson = False,
) -> None:
    """Summarize a dataset, an encoder, a model or a run."""
    is_encoder = path.name == "_encoder.parquet"
    is_model = path.is_dir() and any((path / name).is_file() for name in _MODEL_FILES)
    if model_class is not None and not is_model:
        raise ConfigError(f"--model: {path} is not a saved model")
    with StopSignals():
        if is_encoder:
            result, text = _encoder(path)
        elif is_model:
            result, text = _model(path, import_class(model_class))
        else:
            result, text = _data(path, schema, max_rows)
    emit(result, text, as_json)


def _encoder(path: Path) -> Summary:
    import sparsetrain as st

    encoder = st.data.read_encoder(path)
    tables, share = encoder.tables, encoder.share_embedding
    settings = encoder.to_state()[0]["settings"]
    result = {
        "kind": "encoder",
        "path": str(path),
        "fingerprint": encoder.fingerprint,
        "layout": encoder.layout,
        "settings": settings,
        "dense": [*encoder.dense_columns],
        "tables": tables,
        "share_embedding": share,
    }
    return result, "\n".join(
        [
            f"an encoder, fingerprint {encoder.fingerprint}",
            f"fitted on {encoder.layout}",
            "settings: " + ", ".join(f"{name}={value}" for name, value in settings.items()),
            f"{encoder.num_dense} dense inputs, {len(tables)} tables of {sum(tables.values()):,} "
            "rows",
            "",
            _tables(tables, share),
        ]
    )


def _tables(tables: dict[str, int], share: dict[str, str]) -> str:
    rows = [["table", "rows"]] + [[name, f"{count:,}"] for name, count in tables.items()]
    shown = format_table(rows[: _SHOWN + 1])
    return "\n".join(
        [shown, *(f"{name} shares the table of {owner}" for name, owner in share.items())]
    )


def _model(path: Path, class_: Any) -> Summary:
    import sparsetrain as st

    trainer = st.load_predictor(path, checkpoint="latest", precision="float32", model=class_)
    run = st.Run(path)
    optimizer = run.manifest().get("optimizer", {}).get("name")
    kind, config = trainer.model.kind, trainer.model.config()
    shown = {name: value for name, value in config.items() if name not in _IN_TABLES}
    sizes = ", ".join(f"{name} {_short(value)}" for name, value in shown.items())
    storages = trainer.model.tables().values()
    tables = {k: rows.stop - rows.start for storage in storages for k, rows in storage.items()}
    weights = [*trainer.params.each()]
    layout = trainer.encoder.layout if trainer.encoder else None
    result = {
        "kind": "model",
        "path": str(path),
        "model": kind,
        "config": config,
        "optimizer": optimizer,
        "steps": trainer.steps,
        "epochs": trainer.epochs,
        "bytes": sum(table.weight_bytes for table in weights),
        "arrays": sum(len(table.named) or 1 for table in weights),
        "encoder": layout,
        "best_checkpoint": run.best.name if run.best else None,
    }
    return result, "\n".join(
        [
            f"a {kind} after {format_count(trainer.steps, 'step')}, "
            f"{format_count(trainer.epochs, 'whole epoch')}; {result['arrays']} arrays, "
            f"{result['bytes'] / 1e6:,.1f} MB",
            f"{sizes}; tables in {config.get('table_dtype', 'float32')}; "
            + (f"optimizer {optimizer}" if optimizer else "for prediction only"),
            f"encoder: {layout or 'none'}",
            *_describe_best(run),
            f"{format_count(len(tables), 'table')} of {sum(tables.values()):,} rows",
            "",
            _tables(tables, config.get("share_embedding") or {}),
        ]
    )


def _short(value: Any) -> str:
    """Return a setting's value on part of a line: the sizes of long lists of lists."""
    text = repr(value)
    if len(text) <= 60:
        return text
    if isinstance(value, (list, tuple)) and all(isinstance(part, (list, tuple)) for part in value):
        sizes = sorted(map(len, value))
        return f"{len(value)} lists of {sizes[0]} to {sizes[-1]} values"
    return f"{text[:57]}..."


def _describe_best(run: "st.Run") -> list[str]:
    if run.best is None:
        return []
    users = "evaluate, predict and quantize use it"
    use = users if run.stops_early else "--checkpoint best takes it"
    return [f"this is the latest checkpoint; the best is {run.best.name}: {use}"]


def _data(path: Path, schema: str | None, max_rows: int) -> Summary:
    import sparsetrain as st

    profile = st.data.profile(str(path), schema=schema, max_rows=max_rows)
    result = {"kind": "data", **profile._asdict()}
    result["dense"] = [column._asdict() for column in profile.dense]
    result["categories"] = [column._asdict() for column in profile.categories]
    notes = path / "dataset.json"
    if notes.is_file():
        result["dataset"] = json.loads(notes.read_text(encoding="utf-8"))
    return result, _describe(profile)


def _describe(profile: Any) -> str:
    total = "" if profile.total_rows in (None, profile.rows) else f" of {profile.total_rows:,}"
    lines = [
        profile.name,
        profile.layout,
        f"{format_count(profile.rows, 'row')} read{total}" + _clicks(profile),
    ]
    if profile.dense:
        cells = [["dense", "missing", "below 0", "min", "max"]]
        cells += [
            [
                c.column,
                *(format_share(count, profile.rows) for count in (c.missing, c.negative)),
                *("-" if v is None else f"{v:,.6g}" for v in (c.least, c.greatest)),
            ]
            for c in profile.dense[:_SHOWN]
        ]
        lines += ["", format_table(cells)]
    cells = [["category", "missing", "rare", "distinct", "once", "top value", "its share"]]
    for c in profile.categories[:_SHOWN]:
        value, count = c.top[0] if c.top else ("-", 0)
        shares = [format_share(reserved, c.ids) for reserved in (c.missing, c.rare)]
        counts = [f"{c.distinct:,}", f"{c.once:,}"]
        cells.append([c.column, *shares, *counts, value[:20], format_share(count, c.ids)])
    return "\n".join([*lines, "", format_table(cells)])


def _clicks(profile: Any) -> str:
    if profile.positive is None:
        return "" if ", label" in profile.layout else ", no label"
    return f", {profile.positive / profile.rows:.2%} clicks"

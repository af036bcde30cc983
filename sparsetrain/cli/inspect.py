# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain inspect`: what is in a dataset, an encoder, a model or a run, on one screen."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetrain.cli.data_picture import draw
from sparsetrain.cli.options import AsJson
from sparsetrain.cli.output import emit, format_share, format_table
from sparsetrain.cli.own_class import OwnClass, class_of
from sparsetrain.cli.picture import check_picture
from sparsetrain.cli.stop import StopSignals
from sparsetrain.errors import ConfigError
from sparsetrain.training.progress import format_count

_MODEL_FILES = ("manifest.json", "LATEST")
_SHOWN = 40
_OURS = "dlrm"
# Of a config, what is told of its tables.
_IN_TABLES = ("rows", "names", "table_dtype", "share_embedding")

Found = tuple[dict[str, Any], str]


def inspect(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="Data, a converted folder, encoder, model, run.")
    ],
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw a picture of data: .png, .svg, .pdf.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="FILE", help="Names columns not Criteo's.")
    ] = None,
    max_rows: Annotated[
        int, typer.Option("--max-rows", min=1, help="Read about so many rows of data.")
    ] = 1_000_000,
    own: OwnClass = None,
    as_json: AsJson = False,
) -> None:
    """Show what is in a dataset, an encoder, a model or a run."""
    if plot is not None:
        check_picture("--plot", plot)
    with StopSignals():
        look = _kind(path)
        if own is not None and look is not _model:
            raise ConfigError(f"--model: {path} is no saved model")
        if look is not None:
            if plot is not None:
                raise ConfigError(f"--plot: {path} is no data; only data can be drawn")
            result, text = look(path, class_of(own))
        else:
            result, text = _data(path, schema, max_rows, plot)
    emit(result, text, as_json)


def _kind(path: Path) -> Callable[[Path, Any], Found] | None:
    """Return how to look at something that is not data."""
    if path.name == "_encoder.parquet":
        return _encoder
    if path.is_dir() and any((path / name).is_file() for name in _MODEL_FILES):
        return _model
    return None


def _encoder(path: Path, _own: Any) -> Found:
    import sparsetrain as st

    encoder = st.data.read_encoder(path)
    tables, share = encoder.tables, encoder.share_embedding
    result = {
        "kind": "encoder",
        "path": str(path),
        "fingerprint": encoder.fingerprint,
        "layout": encoder.layout,
        "settings": encoder.to_state()[0]["settings"],
        "dense": list(encoder.dense_columns),
        "tables": tables,
        "share_embedding": share,
    }
    return result, "\n".join(
        [
            f"an encoder, fingerprint {encoder.fingerprint}",
            f"fitted on {encoder.layout}",
            _settings(result["settings"]),
            f"{encoder.num_dense} dense inputs, {len(tables)} tables of {sum(tables.values()):,} "
            "rows",
            "",
            _tables(tables, share),
        ]
    )


def _settings(settings: dict[str, Any]) -> str:
    return "settings: " + ", ".join(f"{name}={value}" for name, value in settings.items())


def _tables(tables: dict[str, int], share: dict[str, str]) -> str:
    rows = [["table", "rows"]] + [[name, f"{count:,}"] for name, count in tables.items()]
    shown = format_table(rows[: _SHOWN + 1])
    return "\n".join([shown, *(f"{name} shares that of {owner}" for name, owner in share.items())])


def _model(path: Path, own: Any) -> Found:
    import sparsetrain as st

    # Nothing is computed.
    trainer = st.load_predictor(path, which="latest", precision="float32", model=own)
    optimizer = trainer.optimizer.formula.name if isinstance(trainer, st.Trainer) else None
    config = trainer.model.config()
    parts = [part for storage in trainer.model.tables().values() for part in storage.items()]
    tables = {name: rows.stop - rows.start for name, rows in parts}
    arrays = trainer.state_dict()
    layout = trainer.encoder.layout if trainer.encoder else None
    run = st.Run(path)
    best = run.best
    result = {
        "kind": "model",
        "path": str(path),
        "model": trainer.model.kind,
        "config": config,
        "optimizer": optimizer,
        "steps": trainer.steps,
        "epochs": trainer.epochs,
        "bytes": sum(array.nbytes for array in arrays.values()),
        "arrays": len(arrays),
        "encoder": layout,
        "best_checkpoint": best.name if best else None,
    }
    return result, "\n".join(
        [
            f"a {_called(result['model'])} after {format_count(trainer.steps, 'step')}, "
            f"{format_count(trainer.epochs, 'whole epoch')}; {len(arrays)} arrays, "
            f"{result['bytes'] / 1e6:,.1f} MB",
            f"{_sizes(result['model'], config)}; tables in {config.get('table_dtype', 'float32')}; "
            + (f"optimizer {optimizer}" if optimizer else "for prediction alone"),
            f"encoder: {layout or 'none'}",
            *([_told(best, run.stops_early)] if best else []),
            f"{format_count(len(tables), 'table')} of {sum(tables.values()):,} rows",
            "",
            _tables(tables, config.get("share_embedding") or {}),
        ]
    )


def _called(kind: str) -> str:
    return kind.upper() if kind == _OURS else kind


def _sizes(kind: str, config: dict[str, Any]) -> str:
    """Say what a model was made with; of a class that is not ours whatever its config names."""
    if kind != _OURS:
        told = {name: value for name, value in config.items() if name not in _IN_TABLES}
        return ", ".join(f"{name} {value!r:.60}" for name, value in told.items())
    return (
        f"dim {config['dim']}, bottom {config['bottom']}, top {config['top']}, "
        f"{_interaction(config)}, {config['num_dense']} dense inputs"
    )


def _interaction(config: dict[str, Any]) -> str:
    """Say how a model's vectors meet; one that was saved before there was a choice does not."""
    if config.get("interaction", "dot") == "dot":
        return "dot interaction"
    layers = format_count(config["cross_layers"], "cross layer")
    return f"{layers} of rank {config['cross_rank']}"


def _told(best: Path, stops_early: bool) -> str:
    taken = "evaluate, predict and quantize take it" if stops_early else "--which best takes it"
    return f"of the run's checkpoints this is the latest; the best is {best.name}: {taken}"


def _data(path: Path, schema: str | None, max_rows: int, plot: Path | None) -> Found:
    import sparsetrain as st

    found = st.data.profile(str(path), schema=st.data.Schema.read(schema), max_rows=max_rows)
    result = {"kind": "data", **found._asdict()}
    result["dense"] = [column._asdict() for column in found.dense]
    result["categories"] = [column._asdict() for column in found.categories]
    notes = path / "dataset.json"
    if notes.is_file():
        result["dataset"] = json.loads(notes.read_text(encoding="utf-8"))
    if plot is not None:
        draw(found, plot)
        result["plot"] = str(plot)
    return result, _describe(found)


def _describe(found: Any) -> str:
    total = "" if found.total_rows in (None, found.rows) else f" of {found.total_rows:,}"
    lines = [
        found.name,
        found.layout,
        f"{format_count(found.rows, 'row')} read{total}" + _clicks(found),
    ]
    if found.dense:
        cells = [["dense", "missing", "below 0", "least", "greatest"]]
        cells += [
            [
                c.column,
                *(format_share(count, found.rows) for count in (c.missing, c.negative)),
                *("-" if v is None else f"{v:,.6g}" for v in (c.least, c.greatest)),
            ]
            for c in found.dense[:_SHOWN]
        ]
        lines += ["", format_table(cells)]
    cells = [["category", "missing", "rare", "distinct", "once", "top value", "its share"]]
    for c in found.categories[:_SHOWN]:
        value, count = c.top[0] if c.top else ("-", 0)
        shares = [format_share(reserved, c.ids) for reserved in (c.missing, c.rare)]
        counts = [f"{c.distinct:,}", f"{c.once:,}"]
        cells.append([c.column, *shares, *counts, value[:20], format_share(count, c.ids)])
    return "\n".join([*lines, "", format_table(cells)])


def _clicks(found: Any) -> str:
    if not found.label_rates:
        return ", no label"
    rates = [rate for _, rate in found.label_rates]
    mean = found.positive / found.rows
    return f", {mean:.2%} clicks (from {min(rates):.2%} to {max(rates):.2%} along the file)"

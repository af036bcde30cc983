# SPDX-License-Identifier: Apache-2.0
"""The trainer that a run begins with: a fresh one, that of a run that goes on, or another run's.

Every row that is held out is read before there is one, or as soon as its encoder is known: a bad
one is met now rather than after the training.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sparsetrain.cli.output import note
from sparsetrain.cli.resuming import Resumed
from sparsetrain.cli.rows import Rows
from sparsetrain.cli.same_schema import require_same_schema
from sparsetrain.cli.settings import Settings
from sparsetrain.cli.starting import Start
from sparsetrain.errors import CheckpointError
from sparsetrain.training.progress import format_count

if TYPE_CHECKING:
    import sparsetrain as st


def trainer_for(
    settings: Settings, data: Rows, begun: Resumed | None, start: Start | None
) -> st.Trainer:
    """Load what a run goes on with or starts from, or learn an encoding and build a model."""
    if begun is not None:
        trainer = _resumed(begun)
    elif start is not None:
        trainer = _started(start, data)
    else:
        encoder = _fit_encoder(settings, data)
        _read_held_out(data, encoder)
        return _build(settings, encoder)
    _read_held_out(data, trainer.encoder)
    return trainer


def _resumed(begun: Resumed) -> st.Trainer:
    trainer = _loaded(begun, "latest")
    note(f"going on after step {trainer.steps:,} of {begun.folder}")
    return trainer


def _started(start: Start, data: Rows) -> st.Trainer:
    """The other run's, the best of it if it had early stopping; new values get rows."""
    known = _loaded(start, "auto")
    note(f"starting from step {known.steps:,} of {start.folder}")
    if known.encoder is None:
        raise CheckpointError(f"{start.folder} has no encoder: its rows cannot be read")
    named, schema = start.settings.data, known.encoder.schema
    if named.schema_file is not None:
        require_same_schema(named.schema_file, schema.to_dict(), start.folder, named.weights)
    encoder = known.encoder.extended(data.train, min_count=start.min_count)
    made = known.extended(encoder)
    for name, after in encoder.tables.items():
        before = known.encoder.tables[name]
        if after > before:
            note(f"{name}: {format_count(after - before, 'new row')}, {after:,} in all")
    return made


def _loaded(known: Resumed | Start, which: str) -> st.Trainer:
    """Load a checkpoint of a run, with the settings that hold now."""
    import sparsetrain as st

    settings = known.settings
    changed = any(key.startswith("optimizer.") for key in known.changed)
    trainer = st.load(
        known.folder,
        which=which,
        target=settings.train.target,
        optimizer=_optimizer(settings) if changed else None,
        precision=settings.train.precision,
        loss_scale=settings.train.loss_scale,
    )
    trainer.seed = settings.train.seed
    trainer.accumulate = settings.optimizer.accumulate
    return trainer


def _fit_encoder(settings: Settings, data: Rows) -> st.data.Encoder:
    import sparsetrain as st

    paths: list[str] = data.whole
    others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    # Of a folder of both, parquet alone is read: the number shows it.
    counted = f" ({format_count(data.files, 'file')})" if any(map(os.path.isdir, paths)) else ""
    note(f"learning the encoding from {paths[0]}{others}{counted}")
    encoder = st.data.Encoder.fit(data.train, **settings.data.encoding())
    if data.train is not data.whole and encoder.encoded:
        # Nothing is learnt of encoded ids but how many rows a table needs, for all of them.
        encoder = st.data.Encoder.fit(paths, **settings.data.encoding())
    note(f"layout: {encoder.layout}")
    if encoder.schema.weights is not None:
        column = encoder.schema.weights
        note(
            f"rows are weighed by {column} in training; scores count them alike, "
            "the training loss does not"
        )
    rows = encoder.tables.values()
    tables = f"{format_count(len(rows), 'table')} of {sum(rows):,} rows in all"
    note(f"{format_count(encoder.num_dense, 'dense input')}, {tables}")
    return encoder


def _read_held_out(data: Rows, encoder: st.data.Encoder | None) -> None:
    import sparsetrain as st

    for rows in data.held_out.values():
        dataset = st.data.Dataset(rows, encoder, read_weights=False)
        for _ in dataset.batches(65_536, prefetch=0):
            pass


def _build(settings: Settings, encoder: st.data.Encoder) -> st.Trainer:
    import sparsetrain as st

    model = st.models.DLRM(
        rows=encoder.rows,
        num_dense=encoder.num_dense,
        names=encoder.columns,
        **settings.model.model_dump(),
        **_bags(encoder),
        row_weights=encoder.schema.weights is not None,
        share_embedding=encoder.share_embedding,
    )
    return st.Trainer(
        model,
        optimizer=_optimizer(settings),
        target=settings.train.target,
        seed=settings.train.seed,
        encoder=encoder,
        accumulate=settings.optimizer.accumulate,
        precision=settings.train.precision,
        loss_scale=settings.train.loss_scale,
    )


def _optimizer(settings: Settings) -> st.optim.Optimizer:
    import sparsetrain as st

    chosen = settings.optimizer
    factors = chosen.schedule_config()
    lr = chosen.lr if len(factors) == 1 else st.optim.Schedule.from_config(factors)
    arguments: dict[str, Any] = {**chosen.arguments(), "lr": lr}
    if chosen.groups:
        arguments["groups"] = [st.optim.ParamGroup(**group) for group in chosen.group_arguments()]
    made: st.optim.Optimizer = getattr(st.optim, chosen.name)(**arguments)
    return made


def _bags(encoder: st.data.Encoder) -> dict[str, Any]:
    """Return what a model of list columns needs besides: bags are summed."""
    return {"pooling": "sum", "weighted": encoder.has_weights} if encoder.has_bags else {}

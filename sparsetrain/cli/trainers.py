# SPDX-License-Identifier: Apache-2.0
"""Trainers of the command line: built from settings, resumed, or started from a saved run.

Held-out rows are read as soon as the encoder exists, so that a bad row stops the command before
training.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sparsetrain.cli.output import note
from sparsetrain.cli.processes import accumulate_of, group_of
from sparsetrain.cli.resume import EarlierRun, require_same_schema
from sparsetrain.cli.settings import Settings
from sparsetrain.cli.settings.model_class import model_class
from sparsetrain.cli.train_files import Rows
from sparsetrain.errors import CheckpointError, ConfigError
from sparsetrain.training.progress import format_count

if TYPE_CHECKING:
    import sparsetrain as st


def trainer_for(settings: Settings, data: Rows, earlier: EarlierRun | None) -> st.Trainer:
    """Load the trainer of an earlier run, or fit an encoder and build a new one."""
    if earlier is None:
        encoder = _fit_encoder(settings, data)
        _read_held_out(data, encoder, settings.model.has_labels)
        return _build(settings, encoder, data.interactions)
    trainer = _resume(earlier) if earlier.resumes else _start(earlier, data)
    _read_held_out(data, trainer.encoder, settings.model.has_labels)
    return trainer


def _resume(run: EarlierRun) -> st.Trainer:
    trainer = load(run, "latest")
    note(f"resuming after step {trainer.steps:,} of {run.folder}")
    return trainer


def _start(run: EarlierRun, data: Rows) -> st.Trainer:
    """Load a saved run's trainer (its best with early stopping), and add rows for new values."""
    trainer = load(run, "auto")
    note(f"starting from step {trainer.steps:,} of {run.folder}")
    if trainer.encoder is None:
        raise CheckpointError(f"{run.folder} has no encoder: its rows cannot be read")
    settings, schema = run.settings.data, trainer.encoder.schema
    if settings.schema_file is not None and run.schema is not None:
        require_same_schema(settings.schema_file, run.schema, run.folder)
    elif settings.schema_file is not None:
        require_same_schema(settings.schema_file, schema.to_dict(), run.folder, settings.weights)
    min_count = settings.min_count if "data.min_count" in run.changed else None
    return grow(trainer, data.train if data.learn is None else data.learn, min_count)


def grow(trainer: st.Trainer, rows: Any, min_count: int | None = None) -> st.Trainer:
    """Return a trainer that continues, with table rows for new values in `rows`."""
    assert trainer.encoder is not None
    encoder = trainer.encoder.extended(rows, min_count=min_count)
    extended = trainer.extended(encoder)
    for name, after in encoder.tables.items():
        before = trainer.encoder.tables[name]
        if after > before:
            note(f"{name}: {format_count(after - before, 'new row')}, {after:,} in all")
    return extended


def load(run: EarlierRun, checkpoint: str) -> st.Trainer:
    """Load a checkpoint of a run with the settings in effect now."""
    import sparsetrain as st

    settings = run.settings
    changed = any(key.startswith("optimizer.") for key in run.changed)
    trainer = st.load(
        run.folder,
        checkpoint=checkpoint,
        target=settings.train.target,
        optimizer=make_optimizer(settings) if changed else None,
        model=settings.model.own_class,
        parallel=group_of(settings),
        **settings.train.arithmetic,
    )
    trainer.seed = settings.train.seed
    trainer.accumulate = accumulate_of(settings)
    return trainer


def _fit_encoder(settings: Settings, data: Rows) -> st.data.Encoder:
    import sparsetrain as st

    paths = data.whole
    others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    # If a folder has both parquet and text files, only parquet is read; the file count shows this.
    count = f" ({format_count(data.files, 'file')})" if any(map(os.path.isdir, paths)) else ""
    converted = all(os.path.isfile(os.path.join(path, "dataset.json")) for path in paths)
    doing = "taking" if converted else "learning"
    note(f"{doing} the encoding from {paths[0]}{others}{count}")
    encoding = settings.data.encoding() | {"schema": data.schema}
    model, numbers = model_class(settings.model.name), settings.data.numbers
    if numbers == "best" and not model.bins_numbers():
        encoding["numbers"] = "scaled"
    elif numbers not in ("best", "scaled") and not issubclass(model, st.models.ClickModel):
        raise ConfigError(
            f"--numbers {numbers}: {settings.model.name} reads only columns that it names; choose "
            "a model of all columns, or leave it out"
        )
    if data.learn is not None:
        rare = {} if "min_count" in settings.data.model_fields_set else {"min_count": 1}
        encoder = st.data.Encoder.fit(data.learn, **encoding | rare)
    else:
        encoder = st.data.Encoder.fit(data.train, **encoding)
    if data.train is not data.whole and not encoder.reserves:
        # Already encoded data only determine table sizes, and tables must hold the held-out ids
        # too.
        encoder = st.data.Encoder.fit(paths, **encoding)
    note(f"layout: {encoder.layout}")
    if encoder.schema.weights is not None:
        column = encoder.schema.weights
        note(f"rows are weighted by {column} in the training loss; scores are unweighted")
    rows = encoder.tables.values()
    tables = f"{format_count(len(rows), 'table')} of {sum(rows):,} rows in all"
    note(f"{format_count(encoder.num_dense, 'dense input')}, {tables}")
    if bins := encoder.schema.bins:
        note(f"numbers in bins: {len(bins)} of {len(encoder.dense_columns)} columns")
    return encoder


def _read_held_out(data: Rows, encoder: st.data.Encoder | None, labels: bool) -> None:
    import sparsetrain as st

    for rows in data.held_out.values():
        dataset = st.data.Dataset(rows, encoder, require_label=labels, read_weights=False)
        for _ in dataset.batches(65_536, prefetch=0):
            pass


def _build(settings: Settings, encoder: st.data.Encoder, interactions: int) -> st.Trainer:
    import sparsetrain as st

    numbers = settings.data.of_model(encoder)
    return st.Trainer(
        settings.model.for_encoder(encoder, interactions, **numbers),
        optimizer=make_optimizer(settings),
        target=settings.train.target,
        seed=settings.train.seed,
        encoder=encoder,
        accumulate=accumulate_of(settings),
        parallel=group_of(settings),
        **settings.train.arithmetic,
    )


def make_optimizer(settings: Settings) -> st.optim.Optimizer:
    """Build the optimizer from the section `optimizer`."""
    import sparsetrain as st

    chosen = settings.optimizer
    factors = chosen.schedule_config()
    lr = chosen.lr if len(factors) == 1 else st.optim.Schedule.from_config(factors)
    arguments: dict[str, Any] = {**chosen.arguments(), "lr": lr}
    if chosen.groups:
        arguments["groups"] = [st.optim.ParamGroup(**group) for group in chosen.group_arguments()]
    optimizer: st.optim.Optimizer = getattr(st.optim, chosen.name)(**arguments)
    return optimizer

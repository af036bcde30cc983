# SPDX-License-Identifier: Apache-2.0
"""A model with as many rows as a newer encoder gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsetrain.data import Encoder
from sparsetrain.errors import ConfigError
from sparsetrain.models.model_checks import config_of
from sparsetrain.system.argument_checks import require_type
from sparsetrain.tables.growth import RARE, copy_grown_
from sparsetrain.training.processes import known, same_processes


def grown(trainer: Any, encoder: Encoder) -> Any:
    """A trainer that goes on with the rows of a newer encoder; see `Trainer.extended`."""
    require_type("encoder", encoder, Encoder, "trainer.encoder.extended(newer data)")
    made = type(trainer)(
        grown_model(trainer.model, trainer.encoder, encoder),
        trainer.optimizer,
        target=trainer.target,
        seed=trainer.seed,
        encoder=encoder,
        accumulate=trainer.accumulate,
        plan=trainer.plan,
        tables=trainer.on_disk,
        **same_processes(trainer),
        **trainer.arithmetic.arguments,
    )
    tables = [name for table in made.params.each() for name in table.named]
    with trainer.snapshot() as (arrays, counts), made._writing() as target:
        firsts, step = known(trainer, arrays, tables, RARE)
        copy_grown_(target, arrays, tables, {} if encoder.encoded else firsts, step)
        made._recount({**counts, "epochs": 0})
    made._restored()
    return made


def grown_model(model: Any, known: Encoder | None, encoder: Encoder) -> Any:
    """A model like this one with as many rows as the encoder gives.

    Raises
    ------
    ConfigError
        If the model's encoder is another one than `encoder` was extended from, or it has no rows.
    """
    if known is None:
        raise ConfigError("extended: the trainer has no encoder, which says what its rows are of")
    if not encoder.extends(known):
        raise ConfigError(
            "extended: this encoder gives known values other rows, or reads rows differently; take "
            "trainer.encoder.extended(newer data), not Encoder.fit"
        )
    config = config_of(model)
    rows = config.get("rows", ())
    before, after = ([each.rows, _by_column(each, rows)] for each in (known, encoder))
    if rows not in before:
        raise ConfigError(
            f"extended: the rows of this {type(model).__name__} are not its encoder's"
        )
    return type(model)(**{**config, "rows": after[before.index(rows)]})


def _by_column(encoder: Encoder, like: Any) -> dict[str, int] | None:
    """Rows by column, if a model has them so, of the columns that it names."""
    sizes = dict(zip(encoder.columns, encoder.rows, strict=True))
    named = isinstance(like, Mapping) and like.keys() <= sizes.keys()
    return {name: sizes[name] for name in like} if named else None

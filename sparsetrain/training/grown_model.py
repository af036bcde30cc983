# SPDX-License-Identifier: Apache-2.0
"""Growth of a model's tables to the number of rows of a newer encoder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from sparsetrain.data import Encoder
from sparsetrain.errors import ConfigError
from sparsetrain.models.features import column_of
from sparsetrain.models.model_checks import config_of
from sparsetrain.system.argument_checks import is_int, require_type
from sparsetrain.tables.growth import RARE, copy_grown_
from sparsetrain.training.processes import known, same_processes

Trained = TypeVar("Trained", bound=Any)  # a `Trainer`


def extended(trainer: Trained, encoder: Encoder) -> Trained:
    """Return a trainer that continues from this one, with rows for new values.

    Known values keep their rows, weights and slots. A new value's row starts as a copy of the
    row for rare values, which scored it before, so no prediction changes; its slots start
    fresh. Steps and schedules continue; epochs count from 0, as in a new run. This trainer
    stays unchanged, so both are in memory.

    Parameters
    ----------
    encoder : Encoder
        ``trainer.encoder.extended(newer data)``.

    Raises
    ------
    ConfigError
        If the encoder does not extend this trainer's, or a parameter other than a table has a
        shape that depends on the rows.

    Examples
    --------
    >>> trainer = st.load("monday")  # doctest: +SKIP
    >>> trainer = trainer.extended(trainer.encoder.extended("tuesday.parquet"))
    ... # doctest: +SKIP
    >>> trainer.fit("tuesday.parquet", run="tuesday")  # doctest: +SKIP
    """
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
        copy_grown_(target, arrays, tables, firsts if encoder.reserves else {}, step)
        made._recount({**counts, "epochs": 0})
    made._restored()
    return made


def grown_model(model: Any, known: Encoder | None, encoder: Encoder) -> Any:
    """Return a model like this one, with as many rows as the encoder needs.

    Raises
    ------
    ConfigError
        If `encoder` was not extended from the model's encoder, or the model's rows do not match its
        own encoder.
    """
    if known is None:
        raise ConfigError("extended: the trainer has no encoder, so its rows have no known values")
    if not encoder.extends(known):
        raise ConfigError(
            "extended: this encoder gives known values new rows, or reads data differently: use "
            "trainer.encoder.extended(newer data), not Encoder.fit"
        )
    config = config_of(model)
    if "rows" not in config:
        return type(model)(**{**config, **_arguments_of_rows(model, config, known, encoder)})
    rows = config["rows"]
    before, after = ([each.rows, _by_column(each, rows)] for each in (known, encoder))
    if rows not in before:
        raise ConfigError(
            f"extended: the rows of this {type(model).__name__} do not match its encoder"
        )
    return type(model)(**{**config, "rows": after[before.index(rows)]})


def _arguments_of_rows(
    model: Any, config: Mapping[str, Any], known: Encoder, encoder: Encoder
) -> dict[str, int]:
    """Return the integers among a constructor's arguments that set the sizes of tables.

    They are found by trial: if the argument grows by one, a table gets one more row.
    """
    tables = {name: feature for name, feature in model.features.items() if feature.tables}
    place = {name: known.columns.index(column_of(name, tables[name])) for name in tables}
    more = {name: encoder.rows[at] - known.rows[at] for name, at in place.items()}
    found: dict[str, int] = {}
    for argument, value in config.items():
        with suppress(Exception):  # if the constructor raises, the argument is not a number of rows
            tried = type(model)(**{**config, argument: value + 1}) if is_int(value) else model
            rows = {n: tried.rows_of(tried.features[n]) - model.rows_of(tables[n]) for n in tables}
            if longer := [more[name] for name, change in rows.items() if change == 1]:
                found[argument] = value + max(longer)
    if not found:
        raise ConfigError(
            f"extended: no argument of {type(model).__name__} sets the number of rows of its "
            "tables: add an argument named rows, or an integer argument for each table"
        )
    return found


def _by_column(encoder: Encoder, like: Any) -> dict[str, int] | None:
    """Return the rows of the columns that `like` names; None if it is not a dict of columns."""
    sizes = dict(zip(encoder.columns, encoder.rows, strict=True))
    named = isinstance(like, Mapping) and like.keys() <= sizes.keys()
    return {name: sizes[name] for name in like} if named else None

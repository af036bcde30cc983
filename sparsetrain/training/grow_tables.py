# SPDX-License-Identifier: Apache-2.0
"""Growth of tables: trained rows are copied, new rows are initialized.

A new row begins as the row of rare values (id 1), by which its value was scored until now. So
growing changes no prediction. Its slots begin as those of a row that was never touched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from sparsetrain.data import Encoder
from sparsetrain.errors import ConfigError
from sparsetrain.models.model_checks import config_of
from sparsetrain.tables.slots import LAST, UNTOUCHED

RARE = 1  # the row of rare and unknown values, of encoders of raw data


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


def copy_grown_(
    target: Mapping[str, np.ndarray],
    source: Mapping[str, np.ndarray],
    tables: Collection[str],
    rare: bool,
) -> None:
    """Copy arrays, by name, into the first rows of `target`, whose other rows are as new.

    Parameters
    ----------
    target, source : mapping from str to array
        Parameters and slots as `state_dict` names them; `source` is of current rows. Writes
        `target`.
    tables : collection of str
        Which of the parameters are tables; their slots grow with them.
    rare : bool
        Whether weights of new rows are those of row 1.

    Raises
    ------
    ConfigError
        If anything but the number of rows differs; nothing is written then.
    """
    for name, array in source.items():
        shape = target[name].shape if name in target else None
        if shape is None or shape[1:] != array.shape[1:] or len(shape) != array.ndim:
            raise ConfigError(f"extended: {name!r} is {array.shape}, and {shape} in the new model")
        if shape != array.shape and not {name, name.rpartition(":")[0]} & {*tables}:
            raise ConfigError(
                f"extended: {name!r} depends on the number of rows, {array.shape} becomes {shape}; "
                "only tables can grow"
            )
    for name, array in source.items():
        old, new = np.split(target[name], [len(array)])
        old[...] = array
        if name.endswith(f":{LAST}"):
            new[new != UNTOUCHED] = array.max()  # all rows are current at the same step
        elif rare and len(new) and name in tables:
            new[...] = array[RARE]

# SPDX-License-Identifier: Apache-2.0
"""Growth of tables: trained rows are copied, new rows are initialized.

A new row starts as a copy of the row of rare values (id 1), which represented its value before, so
growth changes no prediction. Its slots start as for an untouched row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from sparsetrain.errors import ConfigError
from sparsetrain.tables.slots import LAST, UNTOUCHED

RARE = 1  # the row of rare and unknown values in encoders of raw data


def copy_grown_(
    target: Mapping[str, np.ndarray],
    source: Mapping[str, np.ndarray],
    tables: Collection[str],
    firsts: Mapping[str, np.ndarray],
    step: int,
) -> None:
    """Copy arrays, by name, into the first rows of `target`; its remaining rows are new.

    Parameters
    ----------
    target, source : mapping from str to array
        Parameters and slots, named as in `state_dict`; rows of `source` are current. Writes
        `target`.
    tables : collection of str
        Which of the parameters are tables; their slots grow with them.
    firsts : mapping of str to array
        Initial values of new rows, by table; new rows of other tables are unchanged.
    step : int
        The step up to which all rows are current.

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
            new[new != UNTOUCHED] = step
        elif name in firsts:
            new[...] = firsts[name]


def last_step(arrays: Mapping[str, np.ndarray]) -> int:
    """Return the step up to which touched rows are current; 0 if no slot records it."""
    steps = (int(a.max(initial=0)) for name, a in arrays.items() if name.endswith(f":{LAST}"))
    return max(steps, default=0)

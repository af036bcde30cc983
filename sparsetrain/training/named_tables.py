# SPDX-License-Identifier: Apache-2.0
"""A trainer's embedding tables by the names of their columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats import format_of


def table(trainer: Any, name: str) -> np.ndarray:
    """Return a copy of an embedding table, (V, D) float32, by the name of one of its columns.

    Its rows correspond to ``trainer.encoder.values(name)``.

    Raises
    ------
    ConfigError
        If there is no such table.
    """
    with trainer.snapshot() as state:
        rows = state.arrays[_table_name(trainer, name)]
        return format_of(str(rows.dtype)).floats(rows)


def load_table(trainer: Any, name: str, rows: np.ndarray) -> None:
    """Overwrite an embedding table, for example with pretrained vectors; its slots stay.

    To keep a table fixed, use the group ``ParamGroup("embeddings.NAME.*", lr=0)``.

    Parameters
    ----------
    name : str
        Name of any column that uses the table.
    rows : (V, D) floats
        Rounded to the dtype of the table.

    Raises
    ------
    ConfigError
        If there is no such table, the shape differs, or a number is not finite.
    """
    trainer._averages = None
    trainer.params.load_(_table_name(trainer, name), rows, f"load_table: {name}")


def _table_name(trainer: Any, name: str) -> str:
    full = trainer.model.table_of(name)
    tables = [own for table in trainer.params.each() for own in table.named]
    if full not in tables:
        known = ", ".join(t.removeprefix("embeddings.").rpartition(".")[0] for t in tables)
        raise ConfigError(f"there is no table {name!r}; tables are {known}")
    return full

# SPDX-License-Identifier: Apache-2.0
"""The column that rows are weighed by: whether the data have it, and the encoder was told of it."""

from __future__ import annotations

from collections.abc import Sequence

from sparsetrain.data.read.source import Part
from sparsetrain.data.schema.names import check_once
from sparsetrain.data.schema.schema import Schema
from sparsetrain.errors import ConfigError


def require_row_weights(part: Part, schema: Schema, names: Sequence[str] = ()) -> None:
    """Refuse training data without the weights that were asked for.

    `names` are of all columns, where the part has only those that can matter.
    """
    if schema.weights is not None:
        check_once(names or part.schema.names, schema.weights, "weight", part.place)


def check_weighed(asked: Schema, known: Schema, done: str, do: str) -> None:
    """Refuse to weigh rows by a column that those of a known encoder are not weighed by.

    Raises
    ------
    ConfigError
        It says that `done` without that column, and what to `do` again with it.
    """
    own, other = known.weights, asked.weights
    if other not in (None, own):
        raise ConfigError(
            f"weights is {other!r}, but {done} {f'with {own!r}' if own else 'without weights'}; "
            f"leave it out, or {do} again with weights={other!r}"
        )

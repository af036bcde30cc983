# SPDX-License-Identifier: Apache-2.0
"""Features that share an embedding table, such as an item and the items seen before.

Schemas, encoders and models all resolve sharing here: a mapping from a feature's name to the
feature that owns (and names) its table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparsetrain.errors import ConfigError, nearest


def tables_of(names: Sequence[str], share: Mapping[str, str]) -> tuple[str, ...]:
    """Return the name of each feature's table, which is its owner's name.

    `share` maps each feature without its own table to that owner.
    """
    for name, owner in share.items():
        for given in (name, owner):
            if given not in names:
                raise _wrong(name, f"there is no category {given!r}; {nearest(given, names)}")
        if name == owner:
            raise _wrong(name, "it names itself; leave it out")
        if owner in share:
            raise _wrong(
                name,
                f"{owner!r} itself shares the table of {share[owner]!r}; "
                f"name {share[owner]!r} instead",
            )
    if share and len({*names}) != len(names):
        raise ConfigError(f"share_embedding: names must differ: {', '.join(names)}")
    return tuple(share.get(name, name) for name in names)


def require_alike(
    cls: str, columns: Sequence[str], own: Sequence[str], known: Sequence[str]
) -> None:
    """Refuse a model of class `cls` if a column's table differs from `known`, the encoder's."""
    for column, mine, theirs in zip(columns, own, known, strict=True):
        if mine != theirs:
            raise ConfigError(
                f"{cls}: {column} {_place(column, mine)}, but in the encoder it "
                f"{_place(column, theirs)}: give the model share_embedding=encoder.share_embedding"
            )


def require_shared(cls: str, column: str, other: str, known: Mapping[str, str]) -> None:
    """Refuse columns with one table in a model of class `cls`, but not in `known`, the encoder."""
    if known[column] != known[other]:
        raise ConfigError(
            f"{cls}: {other} and {column} are ids of one table, but the encoder numbers them "
            f"apart: give {column} share_embedding = {other!r} in the schema, as "
            f"schema.with_shared({{{column!r}: {other!r}}}) does"
        )


def _place(column: str, table: str) -> str:
    return "has a table of its own" if table == column else f"shares the table of {table}"


def _wrong(name: str, why: str) -> ConfigError:
    return ConfigError(f"share_embedding of {name!r}: {why}")

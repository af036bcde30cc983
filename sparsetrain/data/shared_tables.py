# SPDX-License-Identifier: Apache-2.0
"""Features that share an embedding table, such as an item and the items seen before.

Schemas, encoders and models all resolve sharing here: a mapping from a feature's name to the
feature that owns (and names) its table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparsetrain.errors import ConfigError, nearest


def owners_of(names: Sequence[str], share: Mapping[str, str]) -> tuple[int, ...]:
    """Return, for each feature, the position of its table's owner.

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
    return tuple(
        names.index(share[name]) if name in share else index for index, name in enumerate(names)
    )


def describe_sharing(names: Sequence[str], share: Mapping[str, str]) -> list[str]:
    """Describe the shared tables: for each of `names` without its own table, the owner."""
    return [f"{name} shares the table of {share[name]}" for name in names if name in share]


def _wrong(name: str, why: str) -> ConfigError:
    return ConfigError(f"share_embedding of {name!r}: {why}")

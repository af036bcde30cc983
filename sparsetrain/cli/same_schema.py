# SPDX-License-Identifier: Apache-2.0
"""A schema file that is named again for a run: it may have been moved, but not changed.

A run goes on by the schema that its encoder holds, so an edit of the file would be without effect
on what rows become, and would still decide which of them are held out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparsetrain.errors import CheckpointError, ConfigError


def require_same_schema(
    file: str | None, before: Mapping[str, Any], folder: Path, weights: str | None = None
) -> None:
    """Refuse a file in which something else is written than a run was trained with.

    Parameters
    ----------
    file : str or None
        None is a schema of nothing.
    before : mapping
        The run's schema, in plain values.
    folder : Path
        Of the run.
    weights : str, optional
        Column of weights that goes before the file's, in `before` too.

    Raises
    ------
    CheckpointError
        It names the file and what differs.
    ConfigError
        If the file cannot be read.
    """
    import sparsetrain as st

    if file is not None and not os.path.exists(file):
        raise ConfigError(
            f"{file}: cannot read the schema: there is no such file; "
            "--schema says where it lies now"
        )
    now = st.data.Schema.read(file).with_weights_column(weights).to_dict()
    if now == before:
        return
    given = "no schema file" if file is None else f"--schema {file}"
    raise CheckpointError(
        f"{given} is not what {folder} was trained with: {_differences(before, now)}; give that "
        "schema again, or train anew"
    )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    old, new = _by_name(before), _by_name(now)
    found = (
        f"{name} was {_shown(old.get(name))} and is {_shown(new.get(name))}"
        for name in sorted(old.keys() | new.keys())
        if new.get(name) != old.get(name)
    )
    return ", ".join(found)


def _by_name(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a schema says by the names it has in a file, `linear.price.scale` say."""
    found: dict[str, Any] = {}
    for name, value in schema.items():
        inner = _by_name(value) if isinstance(value, Mapping) else {}
        found |= {f"{name}.{key}": item for key, item in inner.items()} or {name: value}
    return found


def _shown(value: Any) -> str:
    return "not set" if value is None else f"{json.dumps(value, ensure_ascii=False):.80}"

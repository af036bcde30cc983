# SPDX-License-Identifier: Apache-2.0
"""Descriptions of how the rows of each table are updated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from sparsetrain.optim.param_groups import abbreviate_names
from sparsetrain.optim.state import State


def tables_by_path(state: State) -> list[tuple[str, str]]:
    """Name of each table, and the path of its updates."""
    return [
        (table, part.rule.path)
        for name in state.tables
        for part in state.ranges[name]
        for table in part.names
    ]


def describe_tables(tables: Sequence[tuple[str, str]]) -> list[str]:
    """A line for each table; neighbours with the same path share one."""
    return [
        f"{abbreviate_names([name for name, _ in group])}: {path}"
        for path, group in groupby(tables, key=lambda table: table[1])
    ]


def count_tables(tables: Sequence[tuple[str, str]]) -> str:
    """Each path, and how many tables take it."""
    counts = Counter(path.partition(";")[0] for _, path in tables)
    return "; ".join(f"{path} ({n} table{'s'[: n - 1]})" for path, n in counts.items())

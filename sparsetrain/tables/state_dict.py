# SPDX-License-Identifier: Apache-2.0
"""State dictionary: parameters and slots by name, independent of how tables are stored.

A storage of many tables appears as its tables. Arrays in host memory are views, which cost nothing;
arrays on a device are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.errors import CheckpointError, ConfigError, NumericalError
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.runtime.tensors import editable_numpy

Kind = tuple[tuple[int, ...], np.dtype]
Parts = Mapping[str, Mapping[str, slice]]  # storage -> the rows of each table in it
COUNT = "optimizer:step"
# Prefixes of further saved arrays: the encoder's, and histories of missed steps.
ENCODER, HISTORY = BESIDE = "encoder/", "history/"
_BLOCK = 1 << 20  # numbers checked at a time


def require_own_names(model: str, params: Iterable[str], tables: Parts) -> None:
    """Refuse names of parameters that checkpoints use for something else.

    Raises
    ------
    ConfigError
        If there is one; the message names it and `model`, the model's class.
    """
    names = [name for name in params if name not in tables]
    of_tables = [table for named in named_tables(tables).values() for table in named]
    taken = {"", COUNT, *of_tables}
    others = (*BESIDE, *(f"{owner}:" for owner in (*names, *of_tables)))  # "W:sum" is a slot of W
    for name in names:
        if name in taken or name.startswith(others):
            raise ConfigError(
                f"{model} has a parameter {name!r}, a name that checkpoints use for something "
                "else: rename it"
            )


def named_arrays(
    params: Mapping[str, runtime.NDArray],
    state: Mapping[str, Mapping[str, runtime.NDArray]],
    tables: Parts,
    count: runtime.NDArray | None = None,
    view: Callable[[runtime.NDArray], np.ndarray] = runtime.as_numpy,
) -> dict[str, np.ndarray]:
    """Return views of parameters and slots by logical name.

    Parameters
    ----------
    params : mapping
        Parameters by name.
    state : mapping
        Slots by parameter and slot name.
    tables : mapping
        For parameters that are storages, the rows of each table by logical name.
    count : Tensor (1,) int64, optional
        Steps taken, if the optimizer's numbers depend on the step.
    view : callable
        (tensor) -> the array to return.

    Raises
    ------
    ConfigError
        If two arrays would have the same name.
    """
    named: dict[str, np.ndarray] = {}
    for name, param in params.items():
        parts = {"": param, **{f":{slot}": t for slot, t in state.get(name, {}).items()}}
        for suffix, tensor in parts.items():
            for logical, part in _split(name, view(tensor), tables):
                if logical + suffix in named:
                    raise ConfigError(
                        f"a parameter and a slot are both called {logical + suffix!r}: "
                        "rename the parameter"
                    )
                named[logical + suffix] = part
    if count is not None:
        named[COUNT] = view(count)
    return named


@contextmanager
def writable_arrays(
    params: Mapping[str, runtime.NDArray],
    state: Mapping[str, Mapping[str, runtime.NDArray]],
    tables: Parts,
    count: runtime.NDArray | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield writable `named_arrays`; copied back to a device if the block ends without an error."""
    with ExitStack() as stack:

        def editable(stored: Any) -> np.ndarray:
            is_array = isinstance(stored, np.ndarray)
            return stored if is_array else stack.enter_context(editable_numpy(stored))

        yield named_arrays(params, state, tables, count, editable)


def named_tables(tables: Parts) -> dict[str, dict[str, slice]]:
    """Return the rows of each storage's tables by name, such as ``embeddings.C1.weight``.

    A storage with a single table of the same name keeps its name: ``item.weight``.
    """
    named = {}
    for storage, parts in tables.items():
        owner, _, leaf = storage.rpartition(".")
        prefix = storage.split(".")[0]
        named[storage] = {
            storage if table == owner else f"{prefix}.{table}.{leaf}": rows
            for table, rows in parts.items()
        }
    return named


def describe_nonfinite(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Name the first of `named_arrays` that holds NaN or infinity; None if all are finite.

    Reads every number once, `_BLOCK` at a time.
    """
    for name, array in arrays.items():
        stored = format_of(str(array.dtype))
        if stored.scales is not None and array.ndim == 2:
            array = stored.scales(array)
        if "float" not in str(array.dtype):
            continue
        rows = np.atleast_1d(array)
        step = max(1, _BLOCK * len(rows) // max(1, rows.size))
        for start in range(
            0, len(rows), step
        ):  # without a copy of the whole array, for any strides
            if not np.isfinite(rows[start : start + step]).all():
                kind = "slot" if ":" in name else "parameter"
                return f"{kind} {name!r} holds numbers that are not finite"
    return None


def require_finite(arrays: Mapping[str, np.ndarray], steps: int) -> None:
    """Refuse to save slots that overflowed, since their parameters would never change again.

    Raises
    ------
    NumericalError
        If there are any; the message names the first such slot or parameter.
    """
    found = describe_nonfinite(arrays)
    if found is not None:
        raise NumericalError(f"step {steps:,}: {found}: lower the learning rate")


def check_finite(arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse saved arrays with NaN or infinity.

    Raises
    ------
    CheckpointError
        If an array has NaN or infinity.
    """
    finite = Finite()
    for name, array in arrays.items():
        finite.look(name, array)
    finite.require()


class Finite:
    """A check of saved arrays, part by part; raises after all are read."""

    def __init__(self) -> None:
        self._found: str | None = None

    def look(self, name: str, part: np.ndarray) -> None:
        """Check a part of an array."""
        self._found = self._found or describe_nonfinite({name: part})

    def require(self) -> None:
        """Raise as `check_finite` does, for the parts that `look` has seen."""
        if self._found is not None:
            raise CheckpointError(
                f"{self._found}: take another checkpoint, and train with a lower lr"
            )


def check_kinds(target: Mapping[str, np.ndarray], source: Mapping[str, Kind]) -> None:
    """Compare names, shapes and dtypes with the views that will be written.

    Raises
    ------
    CheckpointError
        If one differs.
    """
    missing, unknown = sorted(target.keys() - source.keys()), sorted(source.keys() - target.keys())
    if missing or unknown:
        what = f"{missing[0]!r} is missing" if missing else f"{unknown[0]!r} is unknown"
        why = _reason([*missing, *unknown], bool(missing))
        raise CheckpointError(
            f"saved arrays do not belong to this model and optimizer: {what}{why}"
        )
    for name, view in target.items():
        shape, dtype = source[name]
        if (shape, dtype) != (view.shape, view.dtype):
            raise CheckpointError(
                f"saved array {name!r} is {shape} {dtype}, the model's is {view.shape} {view.dtype}"
            )


def _reason(names: Sequence[str], missing: bool) -> str:
    """Explain the difference if only the slot of exact mode differs."""
    if not all(name.endswith(":last") for name in names):
        return ""
    now, then = ("'exact'", "another") if missing else ("another", "'exact'")
    return (
        f"; the optimizer has mode {now} and the saved one had {then}: load it with the mode that "
        "it was saved with"
    )


def load_arrays_(
    target: Mapping[str, np.ndarray],
    source: Mapping[str, np.ndarray],
    check: Callable[[Mapping[str, np.ndarray]], None],
) -> None:
    """Copy `source` into the views of `target`; checks everything before the first write.

    Raises
    ------
    CheckpointError
        If names, shapes or dtypes differ, or `check` raises for `source`.
    """
    check_kinds(target, {name: (array.shape, array.dtype) for name, array in source.items()})
    check(source)
    for name, view in target.items():
        view[...] = source[name]


def load_rows_(target: np.ndarray, rows: np.ndarray, what: str) -> None:
    """Copy floats into a view of a table, rounded to its dtype.

    Raises
    ------
    ConfigError
        If the shape is wrong, or a number is not finite in the table's dtype.
    """
    rows, stored = np.asarray(rows), format_of(str(target.dtype))
    shape = len(target), stored.width(target.shape[1])
    floats = stored.floats(rows) if rows.dtype == target.dtype and rows.ndim == 2 else rows
    if floats.shape != shape or floats.dtype.kind != "f":
        raise ConfigError(f"{what} is {shape} floats, not {rows.shape} {rows.dtype}")
    with np.errstate(over="ignore"):
        rounded = stored.rows(floats.astype(np.float32))
    if not np.isfinite(stored.floats(rounded)).all():
        raise ConfigError(f"{what} has numbers that are not finite in {stored.dtype}")
    target[...] = rounded


def _split(name: str, view: np.ndarray, tables: Parts) -> Iterator[tuple[str, np.ndarray]]:
    if name not in tables:
        yield name, view
        return
    for logical, rows in tables[name].items():
        yield logical, view[rows]

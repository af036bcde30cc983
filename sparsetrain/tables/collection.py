# SPDX-License-Identifier: Apache-2.0
"""`Tables`: the parameters of a model by name; every read sees current rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.runtime import NDArray
from sparsetrain.tables.restoring import MISSED, missed_in, require_current, restored_
from sparsetrain.tables.state_dict import HISTORY, load_rows_, named_arrays, writable_arrays
from sparsetrain.tables.table import Table


class Tables(MutableMapping[str, NDArray]):
    """Parameters by name, including tables.

    Reading an entry makes all its rows current. A program that reads few rows requests them with
    `rows`, and binds `weights`.

    Attributes
    ----------
    weights : dict of str to Tensor
        The parameters by name; rows of these tensors may lag.
    lagging : list of Table
        Tables with rows that can lag.
    count : Tensor (1,) int64
        Steps taken.
    """

    def __init__(self, tables: Mapping[str, Table], count: NDArray | None = None) -> None:
        self._tables = dict(tables)
        self.count = runtime.zeros((1,), "int64") if count is None else count
        self._counted = runtime.as_numpy(self.count, writable=True)
        self.weights = {name: table.weight for name, table in tables.items()}
        self._slots = [table.slots for table in tables.values()]
        self.lagging = [table for table in tables.values() if table.lags]

    def __getitem__(self, name: str) -> NDArray:
        return self._tables[name].current()

    def __setitem__(self, name: str, weight: NDArray) -> None:
        self._tables[name].weight = self.weights[name] = weight

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"the parameter {name!r} is its model's: it cannot be removed")

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def with_constants(self, constants: Iterable[Table]) -> Tables:
        """Return the same tables, joined with constants, which no step changes."""
        more = {table.name: table for table in constants}
        return Tables({**self._tables, **more}, self.count) if more else self

    def __or__(self, other: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """Return these parameters, with all rows current, joined with `other`."""
        return {**self, **other}

    @property
    def step(self) -> int:
        """Number of steps taken."""
        return int(self._counted[0])

    @step.setter
    def step(self, number: int) -> None:
        self._counted[0] = number

    def each(self) -> Iterable[Table]:
        """Every `Table`, including those of parameters that are not embedding tables."""
        return self._tables.values()

    def table(self, name: str) -> Table:
        """The table of this name."""
        return self._tables[name]

    def put(self, table: Table) -> None:
        """Replace the table of the same name."""
        self._tables[table.name] = table
        self.lagging = [each for each in self.each() if each.lags]

    def slots(self) -> list[NDArray]:
        """All slots of all tables."""
        return [*chain.from_iterable(map(dict.values, self._slots))]

    def rows(self, read: Mapping[str, Any]) -> dict[str, NDArray]:
        """Return parameters for a program that reads these rows, and all rows of tables not listed.

        If no row lags, no kernel is called.
        """
        if not self.lagging:
            return self.weights
        for table in self.lagging:
            if table.name in read:
                table.catch_up(read[table.name])
        whole = {t.name: t.current() for t in self.lagging if t.name not in read}
        return {**self.weights, **whole} if whole else self.weights

    def current(self) -> dict[str, NDArray]:
        """Return all parameters with all rows current."""
        return self.rows({})

    def flush(self, missed: int = 0) -> None:
        """Make all rows current, and record this in the slot `last`; see `Table.flush`."""
        for table in self.each():
            table.flush(missed)

    def views(self, count: NDArray | None = None, *, missed: int = 0) -> dict[str, np.ndarray]:
        """Views of weights and slots by logical name, see `named_arrays`.

        Parameters
        ----------
        count : Tensor (1,) int64, optional
            Steps taken, to include in the views.
        missed : int
            Most steps that a row may have missed, see `Table.flush`.
        """
        self.flush(missed)
        return named_arrays(*self._stored(), count)

    def writing(
        self, count: NDArray | None = None
    ) -> AbstractContextManager[dict[str, np.ndarray]]:
        """Writable `views`, without catching up; copied to the device if the block succeeds."""
        return writable_arrays(*self._stored(writing=True), count)

    def require_current(
        self, params: Mapping[str, NDArray], gradients: Mapping[str, Any], sparse: Collection[str]
    ) -> None:
        """Refuse gradients of rows that lagged when they were read.

        `sparse` are the tables with row-sparse gradients.
        """
        if not self.lagging:
            return
        self.hold(params)
        for table in self.lagging:
            if table.name in sparse:
                table.require_current(table.plan_of(gradients[table.name]))

    def note_step(
        self,
        step: int,
        seed: int,
        rules: Iterable[Any],
        numbers: Iterable[tuple[float, ...]],
        gradients: Mapping[str, bool],
    ) -> None:
        """Count a step, and record it in tables with rows that can lag.

        Parameters
        ----------
        step, seed : int
            The step's number, and the seed of the random bits that round rows.
        rules, numbers : iterable
            The rules, and each rule's numbers.
        gradients : mapping of str to bool
            Parameters with a gradient -> whether it was dense.
        """
        self._counted[0] = step
        if not self.lagging:
            return
        taken = dict(zip(rules, numbers, strict=True))
        for table in self.lagging:
            if table.name in gradients:
                table.note_step(taken, table.keys(seed, step), gradients[table.name])
            table.read = None

    def load_(self, name: str, rows: np.ndarray, what: str) -> None:
        """Write the rows of a table, and mark them as current; see `load_rows_`."""
        self.flush()
        with self.writing() as target:
            load_rows_(target[name], rows, what)

    def hold(self, params: Mapping[str, NDArray], whole: Collection[str] = ()) -> None:
        """Allow rows to lag in these tensors, which steps now update.

        All rows of parameters in `whole`, which have a dense gradient, are made current.
        """
        for table in self.lagging:
            table.weight = self.weights[table.name] = weights_of(params)[table.name]
            if table.name in whole:
                table.flush()

    def saved(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return what `restored` needs besides `views`: missed steps, as arrays and plain values.

        In the plain values, "exact" lists the tables with a meaningful slot `last`.
        """
        kept = [
            (table.ranges[number].names, history)
            for table in self.lagging
            for number, history in table.histories.items()
            if history.missed
        ]
        arrays = {f"{HISTORY}{n}": history.saved() for n, (_, history) in enumerate(kept)}
        return arrays, {
            "exact": sorted(name for table in self.each() for name in table.exact),
            MISSED: [{"tables": [*names], "base": history.base} for names, history in kept],
        }

    def layout(self) -> dict[str, Any]:
        """Each table's position in its parameter, and the tables in exact mode, as plain values."""
        spans = {
            table.name: {n: [int(rows.start), int(rows.stop)] for n, rows in table.named.items()}
            for table in self.each()
            if table.named
        }
        exact = {table.name: table.exact for table in self.each() if table.has_last}
        return {"tables": spans, "exact": exact}

    def differs(self, saved: Mapping[str, Any]) -> str | None:
        """Describe how a saved `layout` differs from this one; None if it does not."""
        own = self.layout()
        if saved.get("tables") != own["tables"]:
            return (
                f"tables given to init differ: saved {saved.get('tables')!r:.200}, current "
                f"{own['tables']!r:.200}"
            )
        exact, before = own["exact"], saved.get("exact")
        if exact and before and exact != before:  # empty if no parameter has the slot `last`
            return f"parameters in exact mode differ: saved {before!r:.200}, current {exact!r:.200}"
        return None

    def check_saved(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Check that the rows of each table are current in these arrays."""
        for table in self.each():
            require_current(table, arrays)

    def restored(self, manifest: Mapping[str, Any] | None = None, *then: Any) -> None:
        """Continue from arrays that were just loaded.

        For a checkpoint, which may have been saved with different modes, `manifest` and `then` are
        as in `missed_in`.
        """
        before = None if manifest is None else {*map(str, manifest["exact"])}
        missed = [] if manifest is None else missed_in(manifest, *then)
        for table in self.each():
            restored_(table, before, missed)

    def _stored(self, writing: bool = False) -> tuple[Any, Any, Any]:
        stored = {name: table.stored(writing) for name, table in self._tables.items()}
        weights, slots = ({name: of[n] for name, of in stored.items()} for n in (0, 1))
        return weights, slots, {table.name: table.named for table in self.each() if table.named}


def weights_of(params: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
    """Return the parameters of any mapping, without catching up rows."""
    return (
        params.weights if type(params) is Tables else params
    )  # isinstance with an abstract class is slower

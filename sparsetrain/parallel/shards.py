# SPDX-License-Identifier: Apache-2.0
"""`Shards` of one model: the sharding plan, this rank's rows, and the exchange of rows."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.models import Model
from sparsetrain.models.initialize import drawn_rows
from sparsetrain.parallel.comm import Comm
from sparsetrain.parallel.cut import Lookups
from sparsetrain.parallel.exchange import Exchange
from sparsetrain.parallel.sharding_plan import ShardingPlan, describe, make_plan
from sparsetrain.runtime import NDArray
from sparsetrain.system.memory import total_memory
from sparsetrain.tables.formula import Slot


class Shards:
    """The tables of one model, spread over the ranks of `comm`.

    Parameters
    ----------
    comm : Comm
    model : Model
        The whole model; its tables are not allocated.
    shard : see `make_plan`
    parts : int
        K, the number of parts of a batch.

    Attributes
    ----------
    plan : ShardingPlan
    """

    def __init__(self, comm: Comm, model: Any, shard: Any, parts: int) -> None:
        self.comm, self.parts = comm, _checked(parts, comm.size)
        self._model = model
        params = dict(model.named_parameters())
        self._stored = {
            storage: format_of(str(params[storage].dtype)) for storage in model.tables()
        }
        widths = {s: form.width(int(params[s].shape[1])) for s, form in self._stored.items()}
        # Tables read by one feature have the same placement, so their rows come in the same order.
        alike = [feature.tables for feature in {**model.features, **model.prepared}.values()]
        self.plan: ShardingPlan = make_plan(model.tables(), widths, comm.size, shard, alike)

    @property
    def rank(self) -> int:
        """Number of this process."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.comm.size

    def __repr__(self) -> str:
        return f"<{self.comm.name}, batches in {self.parts} parts>\n{describe(self.plan)}"

    @property
    def own_parts(self) -> range:
        """Numbers of the parts that this rank computes."""
        each = self.parts // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def in_turn(self, work: Callable[[], Any]) -> None:
        """Run `work` on one rank of each machine, then on all, which read its cached results."""
        hosts = self.comm.hosts
        first = self.comm.rank == [*hosts].index(hosts[self.comm.rank])
        if first:
            work()
        self.comm.any(False)
        work()

    def require_memory(self, slots: Sequence[Slot]) -> None:
        """Refuse tables if rows and slots do not fit in a rank's share of its machine's memory.

        Raises
        ------
        ConfigError
            If they do not fit; the message names the rank, the memory needed, and a sufficient
            number of ranks.
        """
        need = 0
        for storage, plan in self.plan.items():
            stored = self._stored[storage]
            row = stored.extent(plan.width) * stored.array.itemsize
            row += 4 * sum(1 if slot.per == "row" else plan.width for slot in slots)
            need += row * plan.rows(self.rank)
        hosts = self.comm.hosts
        share = (total_memory() or need) // [*hosts].count(hosts[self.rank])
        found = self.comm.gather([need, share])
        for rank, (wanted, there) in enumerate(found):
            if wanted > there:
                enough = -(-sum(each for each, _ in found) // there)
                raise ConfigError(
                    f"parallel: {self.comm.name_of(rank)} needs {wanted / 1e9:,.1f} GB for rows "
                    f"and slots, but its share of the memory is {there / 1e9:,.1f} GB: use "
                    f"{enough} ranks, each on its own machine"
                )

    def tables(self, model: Any) -> dict[str, dict[str, slice]]:
        """Return the rows of each table in this rank's storages."""
        return {storage: plan.slices(self.rank) for storage, plan in self.plan.items()}

    def initialize(self, model: Any, seed: int, fill: bool) -> dict[str, NDArray]:
        """Initialize dense parameters as in one process, and this rank's rows of tables.

        Raises
        ------
        ConfigError
            If the model overrides `initialize`.
        """
        own = type(self._model)
        if fill and own.initialize is not Model.initialize:
            raise ConfigError(
                f"parallel: {own.__name__} overrides initialize, so a rank cannot draw its rows "
                "alone: save() the model in one process, and load it here"
            )
        names = [name for name, _ in self._model.named_parameters()]
        dense = (name for name in names if name not in self.plan)
        made = self._model.initialize_some(dense, seed, fill=fill)
        return {n: made[n] if n in made else self._shard_of(n, seed, fill) for n in names}

    def _shard_of(self, storage: str, seed: int, fill: bool) -> NDArray:
        plan, stored = self.plan[storage], self._stored[storage]
        shape = plan.rows(self.rank), stored.extent(plan.width)
        tensor = runtime.empty(shape, stored.dtype, f"this rank's rows of {storage!r}")
        view = runtime.as_numpy(tensor, writable=True)
        slices = plan.slices(self.rank)
        for table in plan.tables if fill else ():
            rows = table.rows.stop - table.rows.start
            first, step = table.on(self.rank, self.size)
            out = view[slices[table.name]]
            if not len(out):
                continue
            draw, stream = self._model.draw_of_table(table.name, (rows, plan.width))
            for at, drawn in drawn_rows((rows, plan.width), draw, seed, stream):
                begin = at + (first - at) % step  # this rank's first row at or after `at`
                mine = drawn[begin - at :: step]
                place = (begin - first) // step
                out[place : place + len(mine)] = stored.rows(mine)
        return tensor

    @cached_property
    def _exchanges(self) -> dict[str, Exchange]:
        return {s: Exchange(self.comm, p, self._stored[s].dtype) for s, p in self.plan.items()}

    def fetch(
        self,
        weights: Callable[[Mapping[str, Any]], Mapping[str, NDArray]],
        inputs: list[dict[str, Any]],
        lookups: Lookups,
    ) -> dict[str, NDArray]:
        """Return the weights for these inputs, with only the looked-up rows of each storage.

        Ids in `inputs` are replaced by positions in those rows. `weights` returns this rank's rows,
        with the requested rows up to date.
        """
        read = [dict(given) for given in inputs]
        for storage, exchange in self._exchanges.items():
            where = [(n, name) for n in range(len(inputs)) for name in lookups.get(storage, ())]
            places = exchange.place([read[n][name] for n, name in where])
            for (n, name), place in zip(where, places, strict=True):
                inputs[n][name] = place
        exchanges = [*self._exchanges.values()]
        if not exchanges:  # no table is sharded: every rank has all weights
            return dict(weights({}))
        answered = self.comm.swap(np.stack([each.requested for each in exchanges], axis=1))
        requested = {
            storage: exchange.ask(numbers)
            for (storage, exchange), numbers in zip(
                self._exchanges.items(), np.ascontiguousarray(answered.T), strict=True
            )
        }
        params = weights(requested)
        return {**params, **{s: e.fetch(params[s]) for s, e in self._exchanges.items()}}

    def whole(self, weights: Mapping[str, NDArray], names: Container[str]) -> dict[str, NDArray]:
        """Return the weights with the rows of all ranks for the named storages."""
        found = dict(weights)
        for storage, plan in self.plan.items():
            if storage not in names or storage not in weights:
                continue
            ranks = range(self.size)
            own = runtime.as_numpy(weights[storage])
            height = max(table.rows.stop for table in plan.tables)
            out = np.empty((height, own.shape[1]), own.dtype)
            for rank, rows in enumerate(self.comm.gather_rows(own, [*map(plan.rows, ranks)])):
                places = plan.slices(rank)
                for table in plan.tables:
                    first, step = table.on(rank, self.size)
                    out[table.rows][first::step] = rows[places[table.name]]
            found[storage] = runtime.as_tensor(out)
        return found

    def give(self, gradients: Mapping[str, list[Any]]) -> dict[str, Any]:
        """Send this rank's row-sparse gradients to owners; return the gradients of its own rows."""
        return {
            storage: exchange.give(gradients[storage])
            for storage, exchange in self._exchanges.items()
        }


def _checked(parts: int, size: int) -> int:
    ratio = parts // size
    if parts % size or ratio & (ratio - 1):
        allowed = [str(n) for n in range(1, parts + 1) if not parts % n and _is_power(parts // n)]
        raise ConfigError(
            f"batches have {parts} parts, which {size} ranks cannot share: use "
            f"{' or '.join(allowed)} ranks"
        )
    return parts


def _is_power(number: int) -> bool:
    return not number & (number - 1)

# SPDX-License-Identifier: Apache-2.0
"""Tables on disk for a model: checks that the model supports them, and their initial rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.analysis import free_vars

from sparsetrain import runtime
from sparsetrain.backend import backend_of, host
from sparsetrain.compiler.free_rows import reads_of, values_of, with_rows
from sparsetrain.errors import ConfigError
from sparsetrain.models import Model
from sparsetrain.models.initialize import drawn_rows
from sparsetrain.optim import Optimizer
from sparsetrain.runtime import NDArray
from sparsetrain.system.argument_checks import require_type
from sparsetrain.system.locks import with_builder_lock
from sparsetrain.tables.collection import Tables
from sparsetrain.tables.on_disk import DiskTable, OnDisk
from sparsetrain.training.processes import ALONE, OneProcess


def with_disk(
    group: Any,
    tables: OnDisk | None,
    model: Any,
    optimizer: Optimizer,
    target: Any,
    accumulate: int,
) -> Any:
    """Return a trainer's group, with tables on disk if `tables` is set; see `DiskTables`."""
    if tables is None:
        return group
    return DiskTables(tables, model, optimizer, target, accumulate, group is ALONE)


class DiskTables(OneProcess):
    """One process with tables on disk; compiled programs see only a cache of each table.

    Parameters
    ----------
    place : OnDisk
    model : Model
    optimizer, target, accumulate
        As in `Trainer`.
    alone : bool
        Whether there is only one training process.

    Raises
    ------
    ConfigError
        If results would differ from tables in memory, or a program needs all rows of a table at
        once.
    """

    def __init__(
        self,
        place: OnDisk,
        model: Any,
        optimizer: Optimizer,
        target: Any,
        accumulate: int,
        alone: bool,
    ) -> None:
        require_type("tables", place, OnDisk, "st.tables.OnDisk(folder, cache_rows=C)")
        self._place, self._model = place, model
        params = dict(model.named_parameters())
        other = {str(params[name].dtype) for name in model.tables()} - {"float32"}
        refused = {
            "are for click models, which read only rows of a batch's ids": model.all_fields is None,
            "must be float32: half precision is rounded by a row's place in memory": other,
            "need a CPU: set target='cpu'": backend_of(target) is not host(),
            "need one process: remove parallel": not alone,
            "need batches in one part: remove accumulate": accumulate > 1,
            "do not support clip_norm, a sum in the order of rows in memory: use clip_value": (
                optimizer.clip_norm is not None
            ),
        }
        for reason, applies in refused.items():
            if applies:
                raise ConfigError(f"tables on disk {reason}")
        shapes = {name: tuple(map(int, params[name].shape)) for name in model.tables()}
        self._shapes = {
            name: (min(place.cache_rows, rows), width) for name, (rows, width) in shapes.items()
        }

    def initialize(self, model: Any, seed: int, fill: bool) -> dict[str, NDArray]:
        """Return initialized parameters, with empty caches in place of tables.

        Raises
        ------
        ConfigError
            If the model overrides `initialize`.
        """
        own = type(model)
        if fill and own.initialize is not Model.initialize:
            raise ConfigError(
                f"tables on disk: {own.__name__}.initialize draws all weights at once: override "
                "draw_of_table instead"
            )
        names = [name for name, _ in model.named_parameters()]
        dense = (name for name in names if name not in self._shapes)
        made = model.initialize_some(dense, seed, fill=fill)
        caches = {
            name: runtime.zeros(shape, "float32", f"the cache of {name!r}")
            for name, shape in self._shapes.items()
        }
        return {name: made[name] if name in made else caches[name] for name in names}

    @with_builder_lock
    def of_caches(self, module: tvm.IRModule) -> tvm.IRModule:
        """Return the model's module, with as many rows in each table as its cache has.

        Raises
        ------
        ConfigError
            If a function reads a table other than by a batch's ids, or uses these ids for anything
            else.
        """
        made = module.clone()
        for name, function in module.functions_items():
            if isinstance(function, relax.Function):
                self._require_lookups(function)
                rows = {
                    param: tirx.IntImm("int64", self._shapes[param.name][0])
                    for param in function.params
                    if param.name in self._shapes
                }
                made[name] = with_rows(function, rows)
        return made

    def _require_lookups(self, function: relax.Function) -> None:
        reads = [*reads_of(function, self._shapes)]
        ids = {name for _, _, name in reads}
        uses = [var.name for v in values_of(function) for var in free_vars(v)]
        if None in ids or sum(uses.count(name) for name in ids) != len(reads):
            raise ConfigError(
                f"tables on disk: {type(self._model).__name__} must read tables only by ids of the "
                "batch, and use these ids for nothing else: positions in the cache replace them"
            )

    def open_tables_(self, trainer: Any, seed: int, fill: bool) -> None:
        """Create the files behind the caches; the caches become the trainer's tables.

        Raises
        ------
        ConfigError
            If the optimizer updates untouched rows, or a file cannot be created.
        ResourceError
            If the disk is full.
        """
        trainer._module = self.of_caches(trainer._module)
        tables: Tables = trainer.state.tables
        for storage, (_, width) in self._shapes.items():
            table = DiskTable(tables.table(storage), Path(self._place.folder))
            tables.put(table)
            for name, rows in self._model.tables()[storage].items() if fill else ():
                shape = rows.stop - rows.start, width
                draw, stream = self._model.draw_of_table(name, shape)
                part = next(part for part, own in table.named.items() if own == rows)
                table.fill_(part, drawn_rows(shape, draw, seed, stream))

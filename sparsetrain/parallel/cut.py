# SPDX-License-Identifier: Apache-2.0
"""Cutting a program off from its tables: it then reads only the rows that ranks sent.

In the cut function, a table has only the rows that a batch reads, their number is symbolic, and ids
are positions among them; rows are sent in the dtype in which they are computed. So every lookup,
bag and derivative stays unchanged. A table that is read in any other way cannot be sharded.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import combinations

import tvm
from tvm import relax, tirx

from sparsetrain.ad.gradient import GradientModule
from sparsetrain.compiler.free_rows import reads_of, with_rows
from sparsetrain.compiler.program import extract
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.relax_op import callees
from sparsetrain.parallel.sharding_plan import ShardingPlan
from sparsetrain.system.locks import with_builder_lock

Lookups = dict[str, tuple[str, ...]]  # storage -> names of the inputs with its row numbers


def cut_gradient(gradient: GradientModule, plan: ShardingPlan) -> tuple[GradientModule, Lookups]:
    """Apply `cut` to a gradient function."""
    module, lookups = cut(gradient.module, gradient.function, plan)
    return replace(gradient, module=module), lookups


@with_builder_lock
def cut(module: tvm.IRModule, function: str, plan: ShardingPlan) -> tuple[tvm.IRModule, Lookups]:
    """Give each storage of a plan a symbolic number of rows.

    Returns
    -------
    module, lookups
        A module with only this function, and the inputs that hold each storage's row numbers.

    Raises
    ------
    ConfigError
        If a storage is read other than by lookups of an input, or one input looks up two storages
        that are sharded differently.
    """
    module = extract(module, function)
    old = module[function]
    names = dict(zip(old.params, (param.name for param in old.params), strict=True))
    wanted = {param: names[param] for param in old.params if names[param] in plan}
    lookups = _lookups(old, wanted.values())
    _require_alike(lookups, plan)
    letters = {param: tirx.Var(f"sent{number}", "int64") for number, param in enumerate(wanted)}
    made = with_rows(old, letters, as_computed=True)
    return tvm.IRModule({**callees(module), tvm.ir.GlobalVar(function): made}), lookups


def _lookups(function: relax.Function, tables: Collection[str]) -> Lookups:
    found: dict[str, list[str]] = {name: [] for name in tables}
    for name, operator, ids in reads_of(function, tables):
        if ids is None:
            raise ConfigError(
                f"parallel: {name} is read by {operator or 'another value'}, not only by lookups "
                "of the batch's ids, so its rows cannot be spread over ranks: train this model in "
                "one process"
            )
        if ids not in found[name]:
            found[name].append(ids)
    return {name: tuple(inputs) for name, inputs in found.items()}


def _require_alike(lookups: Lookups, plan: ShardingPlan) -> None:
    """Refuse an input if it looks up two storages that would send its rows in different orders."""
    for one, other in combinations(lookups, 2):
        both = {*lookups[one]} & {*lookups[other]}
        where = [[table.owner for table in plan[name].tables] for name in (one, other)]
        if both and (where[0] != where[1] or len(where[0]) > 1):
            raise ConfigError(
                f"parallel: {min(both)!r} is looked up in {one} and in {other}, which are "
                "sharded differently: name both tables in the feature"
            )

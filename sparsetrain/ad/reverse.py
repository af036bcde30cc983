# SPDX-License-Identifier: Apache-2.0
"""The reverse pass over one dataflow block.

It walks the bindings from last to first, passes each variable's cotangent to the rule of the call
that defined it, and joins the results into the arguments' cotangents. Only variables on a path from
a wanted parameter are visited (activity), so no unneeded cotangent is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import relax

from sparsetrain.ad.bindings import used_vars
from sparsetrain.ad.copied_rows import require_most_read
from sparsetrain.ad.cotangent import (
    Cotangent,
    emit,
    is_row_sparse,
    join,
    make_dense,
    materialize,
)
from sparsetrain.ad.differentiable import extents_of, is_float, shapes_differ
from sparsetrain.ad.messages import call_name, missing_rule, no_part, wrong_shape
from sparsetrain.ad.vjp_rules import apply_rule, find_rule
from sparsetrain.errors import ConfigError
from sparsetrain.sparse_tensor import RowSparse

STOP = frozenset({"relax.grad.no_grad"})


def activity(
    bindings: Iterable[relax.VarBinding], wanted: dict[relax.Var, str]
) -> dict[relax.Var, frozenset[str]]:
    """Map each floating-point variable to the wanted parameters it depends on, if there are any."""
    depends = {var: frozenset([name]) for var, name in wanted.items()}
    for binding in bindings:
        if _stops(binding.value) or not is_float(binding.var.ty):
            continue
        sources = [depends[v] for v in used_vars(binding.value) if v in depends]
        if sources:
            depends[binding.var] = frozenset().union(*sources)
    return depends


@dataclass
class ReversePass:
    """The cotangents gathered so far; `add` joins one more.

    Parameters
    ----------
    depends : dict
        Result of `activity`.
    densify : frozenset of str
        Parameters that may have a dense gradient.
    """

    depends: dict[relax.Var, frozenset[str]]
    densify: frozenset[str] = frozenset()
    cotangents: dict[relax.Var, Cotangent] = field(default_factory=dict)
    made_by: dict[relax.Var, Any] = field(default_factory=dict, init=False)

    def run(
        self,
        bindings: Sequence[relax.VarBinding],
        loss: relax.Var,
        start: relax.Var | None = None,
    ) -> None:
        """Compute the parameters' `cotangents`, from ``d loss / d loss = 1`` or from `start`."""
        self.made_by = {binding.var: binding.value for binding in bindings}
        # A constant, because `ones` would be compiled and run as a kernel.
        self.add(loss, relax.const(1.0, str(loss.ty.dtype)) if start is None else start)
        for binding in reversed(bindings):
            cotangent = self.cotangents.pop(binding.var, None)
            if cotangent is not None:
                self._through(binding, cotangent)

    def _require_known(self, call: relax.Call) -> None:
        """Raise for a nondifferentiable argument of unknown shape, before a rule sees it."""
        calls = [call]
        while calls:
            for var in used_vars(calls.pop()):
                maker = self.made_by.pop(var, None)  # visit each variable once
                unknown = isinstance(var.ty, relax.TensorType) and extents_of(var) is None
                if unknown and var in self.depends and isinstance(maker, relax.Call):
                    if find_rule(maker, None) is None:
                        raise ConfigError(missing_rule(maker, None, self._origin(var)))
                    calls.append(maker)

    def add(self, target: Any, cotangent: Any, maker: str = "") -> None:
        """Join a cotangent into a variable, or field by field into a tuple of variables.

        `maker` is the operator that returned the cotangent, for the error message.
        """
        if cotangent is None or not any(v in self.depends for v in used_vars(target)):
            return
        if isinstance(target, relax.Tuple):
            for index, item in enumerate(target.fields):
                self.add(item, _field(cotangent, index), maker)
            return
        if isinstance(cotangent, relax.Expr):
            cotangent = emit(cotangent)
        if shapes_differ(cotangent, target):
            raise ConfigError(wrong_shape(maker, cotangent, target, self._origin(target)))
        before = self.cotangents.get(target)
        self.cotangents[target] = join(
            before, cotangent, self._origin(target), self._may_densify(target)
        )

    def _through(self, binding: relax.VarBinding, cotangent: Cotangent) -> None:
        value = binding.value
        if isinstance(value, (relax.Var, relax.Tuple)):
            self.add(value, cotangent)
        elif isinstance(value, relax.TupleGetItem):
            fields: list[Any] = [None] * len(value.tuple_value.ty.fields)
            fields[value.index] = cotangent
            self.add(value.tuple_value, tuple(fields))
        elif isinstance(value, relax.Call):
            self._require_known(value)
            parts = self._rule(binding, cotangent)
            for position, argument in enumerate(value.args):
                part = parts[position] if position < len(parts) else None
                if part is None and any(v in self.depends for v in used_vars(argument)):
                    raise ConfigError(no_part(value, position, self._origin(argument)))
                self.add(argument, None if _stops(part) else part, call_name(value))

    def _rule(self, binding: relax.VarBinding, cotangent: Cotangent) -> Sequence[Any]:
        """Apply the rule; if it needs a dense cotangent and `densify` allows one, retry with it."""
        may_densify = self._may_densify(binding.var)
        if not may_densify:
            require_most_read(binding.value, cotangent)
        try:
            return self._parts(binding, cotangent)
        except ConfigError:
            if not (is_row_sparse(cotangent) and may_densify):
                raise
        return self._parts(binding, make_dense(cotangent))

    def _parts(self, binding: relax.VarBinding, cotangent: Cotangent) -> Sequence[Any]:
        call = binding.value
        rule = find_rule(call, cotangent)
        if rule is None:
            raise ConfigError(missing_rule(call, cotangent, self._origin(binding.var)))
        if isinstance(binding.var.ty, relax.TupleType) and not is_row_sparse(cotangent):
            cotangent = materialize(cotangent, binding.var.ty)
        try:
            parts = apply_rule(rule, binding.var, call, cotangent)
        except ConfigError as error:
            if not is_row_sparse(cotangent):
                raise
            origin = self._origin(binding.var)
            raise ConfigError(f"parameter {origin!r}: {error}, or densify=[{origin!r}]") from error
        if isinstance(parts, (relax.Expr, RowSparse)):
            raise ConfigError(
                f"the rule of operator {call.op.name!r} must return a list, one part per argument"
            )
        return parts

    def _origin(self, target: Any) -> str:
        names = [self.depends[var] for var in used_vars(target) if var in self.depends]
        return ", ".join(sorted(frozenset().union(*names)))

    def _may_densify(self, var: relax.Var) -> bool:
        return bool(self.depends[var] & self.densify)


def _field(cotangent: Any, index: int) -> Any:
    if isinstance(cotangent, tuple):
        return cotangent[index]
    return relax.TupleGetItem(emit(cotangent), index)


def _stops(value: Any) -> bool:
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") in STOP

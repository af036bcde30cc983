# SPDX-License-Identifier: Apache-2.0
"""Mixed-precision pass, which inserts casts before the matrix products of a float32 program.

The pass applies a `Policy`. It runs after differentiation, so it treats the forward and backward
passes alike. Parameters (the master weights) and their gradients stay float32: a product rounds its
operands, sums in float32 and returns float32. Operators with hand-written kernels get the attribute
`rounds`, and the kernel rounds its operands as it reads them, without storing a rounded copy.

Invariant: the function's argument and result types do not change. The pass does not depend on the
device; the schedule fuses casts and products into one kernel.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from sparsetrain.compiler.precision.policy import ROUND_INSIDE, Policy
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.rewrite import Rewriter, is_call

_PRODUCTS = frozenset({"relax.matmul"})
_MOVES = "relax.permute_dims"


def to_half(module: tvm.IRModule, function: str, policy: Policy) -> tvm.IRModule:
    """Return `module` with one function in mixed precision.

    Parameters
    ----------
    module : tvm.IRModule
        The module that contains the function.
    function : str
        Name of a float32 function of one dataflow block.
    policy : Policy
        Decides which operands are rounded.

    Raises
    ------
    ConfigError
        If the policy names an operator without a kernel that rounds its operands.
    """
    _require_kernels(policy)
    rewriter = _Rewriter(module, policy)
    rewritten = rewriter.rewrite(module[function])
    rewriter.builder_.update_func(module.get_global_var(function), rewritten)
    # The schedule would count a dead transpose as a reader and keep a float32 copy for it.
    return relax.transform.DeadCodeElimination([function])(rewriter.builder_.get())


@mutator
class _Rewriter(Rewriter):
    def __init__(self, module: tvm.IRModule, policy: Policy) -> None:
        super().__init__(module)
        self._policy = policy
        self._halves: dict[relax.Var, relax.Expr] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not _operator(call):
            return super().visit_call_(call)
        if self._is_half_product(call):
            operands = [self._half(operand) for operand in call.args]
            return self.builder_.normalize(relax.op.matmul(*operands, out_dtype="float32"))
        rounding = tvm.ir.make_node("ir.DictAttrs", rounds=self._policy.dtype)
        attrs = rounding if self._policy.rounds(call) else call.attrs
        operands = [self._as_stored(operand) for operand in call.args]
        return self.builder_.normalize(relax.Call(call.op, operands, attrs, call.ty_args))

    def _half(self, operand: relax.Expr) -> relax.Expr:
        """Return the rounded operand, cast once for all its readers and before any transpose."""
        if operand not in self._halves:
            moved = self.definitions.of(operand)
            if is_call(moved, _MOVES):
                half = relax.Call(moved.op, [self._half(moved.args[0])], moved.attrs)
            else:
                half = relax.op.astype(self.visit_expr(operand), self._policy.dtype)
            self._halves[operand] = self.builder_.emit(half)
        return self._halves[operand]

    def _as_stored(self, operand: relax.Expr) -> relax.Expr:
        if not self._is_stored_in_half(operand):
            return self.visit_expr(operand)
        return self.builder_.emit(relax.op.astype(self._half(operand), "float32"))

    def _is_stored_in_half(self, operand: relax.Expr) -> bool:
        """Whether a product rounds the value, and all its other readers are `neighbours`."""
        if not isinstance(operand, relax.Var) or self.definitions.of(operand) is None:
            return False
        readers = self._readers(operand)
        others = [_operator(reader) for reader in readers if not self._is_half_product(reader)]
        return len(others) < len(readers) and all(o in self._policy.neighbours for o in others)

    def _is_half_product(self, value: relax.Expr) -> bool:
        return _operator(value) in _PRODUCTS and self._policy.rounds(value)

    def _readers(self, var: relax.Var) -> list[relax.Expr]:
        """Return the readers of `var`, looking through transposes."""
        found = []
        for user in self.definitions.users(var):
            value = self.definitions.of(user)
            found += self._readers(user) if is_call(value, _MOVES) else [value]
        return found


def _require_kernels(policy: Policy) -> None:
    known = _PRODUCTS | ROUND_INSIDE
    unknown = sorted(policy.always.keys() - known)
    if unknown:
        raise ConfigError(
            f"precision: operator {unknown[0]!r} has no kernel that rounds its operands; a "
            f"policy's `always` can name {', '.join(sorted(known))}"
        )


def _operator(value: relax.Expr | None) -> str:
    """Return the name of the operator that `value` calls, or ""."""
    called = getattr(value, "op", None)
    return called.name if isinstance(called, tvm.ir.Op) else ""

# SPDX-License-Identifier: Apache-2.0
"""Mixed-precision pass: casts before the matrix products of a float32 program.

The pass reads a `Policy` and runs after differentiation, so forward and backward are treated alike.
Parameters stay float32 (the master weights), and so do their gradients: a product rounds its
operands, sums in float32 and returns float32. Operators with kernels of their own round inside
them, without storing a rounded copy; they get the attribute `rounds`.

Invariant: types of arguments and results do not change. The pass does not depend on the device;
fusing casts and products into one kernel is the schedule's job.
"""

from __future__ import annotations

from collections.abc import Container

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from sparsetrain.compiler.precision.policy import ROUND_INSIDE, Policy
from sparsetrain.errors import ConfigError

_PRODUCTS = frozenset({"relax.matmul"})


def to_half(module: tvm.IRModule, function: str, policy: Policy) -> tvm.IRModule:
    """Return `module` with one function in mixed precision.

    Parameters
    ----------
    module : tvm.IRModule
        Holds the function.
    function : str
        One dataflow block, float32.
    policy : Policy
        What is rounded.

    Raises
    ------
    ConfigError
        If the policy would round what no kernel rounds.
    """
    _require_kernels(policy)
    rewriter = _Rewriter(module, policy)
    rewritten = rewriter.rewrite(module[function])
    rewriter.builder_.update_func(module.get_global_var(function), rewritten)
    # A dead transpose would still count as a reader and keep a float32 copy of what it reads.
    return relax.transform.DeadCodeElimination([function])(rewriter.builder_.get())


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, module: tvm.IRModule, policy: Policy) -> None:
        super().__init__(module)
        self._policy = policy
        self._halves: dict[relax.Var, relax.Expr] = {}

    def rewrite(self, function: relax.Function) -> relax.Function:
        self._readers = _Readers(function, self._policy)
        return self.visit_expr(function)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not _calls(call):
            return super().visit_call_(call)
        rounds = self._policy.rounds(call)
        if rounds and _calls(call, _PRODUCTS):
            operands = [self._half(operand) for operand in call.args]
            return self.builder_.normalize(relax.op.matmul(*operands, out_dtype="float32"))
        rounding = tvm.ir.make_node("ir.DictAttrs", rounds=self._policy.dtype)
        attrs = rounding if rounds else call.attrs
        operands = [self._as_stored(operand) for operand in call.args]
        return self.builder_.normalize(relax.Call(call.op, operands, attrs, call.ty_args))

    def _half(self, operand: relax.Expr) -> relax.Expr:
        """The rounded operand, rounded before it is transposed; one cast serves all readers."""
        if operand not in self._halves:
            moved = self._readers.moved(operand)
            if moved is not None:
                half = relax.Call(moved.op, [self._half(moved.args[0])], moved.attrs)
            else:
                half = relax.op.astype(self.visit_expr(operand), self._policy.dtype)
            self._halves[operand] = self.builder_.emit(half)
        return self._halves[operand]

    def _as_stored(self, operand: relax.Expr) -> relax.Expr:
        if not self._readers.stored_in_half(operand):
            return self.visit_expr(operand)
        return self.builder_.emit(relax.op.astype(self._half(operand), "float32"))


class _Readers:
    """Who reads which value of a function."""

    def __init__(self, function: relax.Function, policy: Policy) -> None:
        self._values = relax.analysis.get_var2val(function)
        self._uses = relax.analysis.udchain(function.body.blocks[0])
        self._policy = policy

    def moved(self, operand: relax.Expr) -> relax.Call | None:
        """The call that transposes something into `operand`, or None."""
        value = self._values.get(operand) if isinstance(operand, relax.Var) else operand
        return value if _calls(value, {"relax.permute_dims"}) else None

    def stored_in_half(self, operand: relax.Expr) -> bool:
        """Whether some product rounds a value, and none but neighbours read it besides."""
        if not isinstance(operand, relax.Var) or operand not in self._values:
            return False
        readers = self._readers(operand)
        rounding = [reader for reader in readers if self._rounds(reader)]
        others = [reader for reader in readers if not self._rounds(reader)]
        return bool(rounding) and all(_calls(o, self._policy.neighbours) for o in others)

    def _rounds(self, reader: relax.Expr) -> bool:
        return _calls(reader, _PRODUCTS) and self._policy.rounds(reader)

    def _readers(self, var: relax.Var) -> list[relax.Expr]:
        """What reads `var`; instead of a transpose of it, the readers of that."""
        found = []
        for user in self._uses.get(var, ()):
            moves = self.moved(user) is not None
            found += self._readers(user) if moves else [self._values[user]]
        return found


def _require_kernels(policy: Policy) -> None:
    known = _PRODUCTS | ROUND_INSIDE
    unknown = sorted(policy.always.keys() - known)
    if unknown:
        raise ConfigError(
            f"precision: no kernel of {unknown[0]!r} rounds its operands; a policy's `always` may "
            f"name {', '.join(sorted(known))}; what may read rounded values is among its neighbours"
        )


def _calls(value: relax.Expr | None, names: Container[str] | None = None) -> bool:
    """Whether `value` calls an operator, of one of these names."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return False
    return names is None or value.op.name in names

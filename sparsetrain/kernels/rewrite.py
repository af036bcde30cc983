# SPDX-License-Identifier: Apache-2.0
"""Passes that rewrite Relax functions, and queries about the values in them.

A pass implements its rule in the methods of a `Rewriter`; `function_pass` turns it into a module
pass.
"""

from __future__ import annotations

from functools import cached_property, wraps
from typing import Any, TypeGuard

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator


class Definitions:
    """The bindings of a function, for passes that look up definitions of operands."""

    def __init__(self, function: relax.Function) -> None:
        self._function = function

    @cached_property
    def _values(self) -> Any:
        return relax.analysis.get_var2val(self._function)

    @cached_property
    def _uses(self) -> Any:
        blocks = self._function.body.blocks
        is_dataflow = bool(blocks) and isinstance(blocks[0], relax.DataflowBlock)
        return relax.analysis.udchain(blocks[0]) if is_dataflow else {}

    def of(self, value: relax.Expr) -> Any:
        """Return the value bound to a variable, None for an argument; other values unchanged."""
        return self._values.get(value) if isinstance(value, relax.Var) else value

    def users(self, value: relax.Expr) -> Any:
        """Return the variables of the first block that are computed from `value`."""
        return self._uses.get(value, ())

    def readers(self, value: relax.Expr) -> int:
        """Return how many bindings of the first block read a variable."""
        return len(self.users(value))

    def is_read_once(self, value: relax.Expr) -> bool:
        """Whether one binding of its block reads a variable, and nothing outside the block does."""
        return isinstance(value, relax.DataflowVar) and self.readers(value) == 1


class Rewriter(PyExprMutator):
    """Base class of a rewrite rule; `definitions` has the bindings of the current function."""

    definitions: Definitions

    def rewrite(self, function: relax.Function) -> relax.Function:
        """Apply the rule to a function."""
        self.definitions = Definitions(function)
        return self.visit_expr(function)


def rewrite_functions(module: tvm.IRModule, rewriter: Any) -> tvm.IRModule:
    """Rewrite every Relax function of a module with a `Rewriter` made for the module."""
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(name, rewriter.rewrite(function))
    return rewriter.builder_.get()


def function_pass(rule: type[Rewriter]) -> Any:
    """Turn a `Rewriter` into a module pass with its name."""
    rewriter = mutator(rule)

    def run(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(module, rewriter(module))

    @wraps(rule, updated=())
    def made_pass() -> tvm.transform.Pass:
        return tvm.transform.module_pass(run, opt_level=0, name=rule.__name__)

    return made_pass


def is_call(value: relax.Expr | None, operator: str) -> TypeGuard[relax.Call]:
    """Whether `value` calls the named operator."""
    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, tvm.ir.Op)
        and value.op.name == operator
    )

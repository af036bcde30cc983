# SPDX-License-Identifier: Apache-2.0
"""Definitions and read counts of the variables of a Relax function."""

from __future__ import annotations

from typing import Any

from tvm import relax


class Definitions:
    """Those of a function, for a pass that looks at what its operands were made of."""

    def __init__(self, function: relax.Function) -> None:
        self._values = relax.analysis.get_var2val(function)
        first = function.body.blocks[0] if function.body.blocks else None
        is_dataflow = isinstance(first, relax.DataflowBlock)
        self._uses = relax.analysis.udchain(first) if is_dataflow else {}

    def of(self, value: relax.Expr) -> Any:
        """What a variable is bound to, None for an argument; anything else itself."""
        return self._values.get(value) if isinstance(value, relax.Var) else value

    def is_read_once(self, value: relax.Expr) -> bool:
        """Whether nothing reads it but one binding of its block; others are seen outside, too."""
        return isinstance(value, relax.DataflowVar) and len(self._uses.get(value, ())) == 1

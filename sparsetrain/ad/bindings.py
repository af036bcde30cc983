# SPDX-License-Identifier: Apache-2.0
"""Variables that a binding of a dataflow block reads."""

from __future__ import annotations

from typing import Any

from tvm import relax


def used_vars(value: Any) -> list[relax.Var]:
    """Return the variables that the right-hand side of a binding in normal form reads."""
    if isinstance(value, relax.Var):
        return [value]
    if isinstance(value, relax.Tuple):
        return [var for item in value.fields for var in used_vars(item)]
    if isinstance(value, relax.TupleGetItem):
        return used_vars(value.tuple_value)
    if isinstance(value, relax.Call):
        return [var for item in value.args for var in used_vars(item)]
    return []

# SPDX-License-Identifier: Apache-2.0
"""Reverse rule of operators that read by ids: add the cotangent where an element was read.

Ids outside their tensor add nothing. Sums have a fixed order, so gradients have the same bits in
every run.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax, tirx
from tvm.relax import op

from sparsetrain.ad.activation_rows import added_where_read
from sparsetrain.ad.copied_rows import are_rows, copied_parameter, row_sparse_copies
from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.vjp_rules import row_sparse_cotangent
from sparsetrain.errors import ConfigError
from sparsetrain.ops.indexing.reads import read_of, rows_read


def _read(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Return a row-sparse cotangent where ids name rows of a parameter.

    The cotangent of an activation is dense. Reading single elements of a parameter of known shape,
    or of its copies, is an error: the cotangent would be as long as the parameter.
    """
    x, shape = call.args[0], list(call.args[0].ty.shape)
    rows = rows_read(builder, x, read_of(builder, call))
    source = copied_parameter(x, builder)
    if source is None or (x is source and not all(isinstance(n, tirx.IntImm) for n in shape)):
        return [added_where_read(x, rows, cotangent), None]
    if x is not source and are_rows(x, rows):
        return [row_sparse_copies(x, rows, cotangent), None]
    if x is not source or rows.width != prod(map(int, shape[1:])):
        raise ConfigError(
            f"{call.op.name} from parameter {source.name!r} has a row-sparse cotangent only where "
            "ids name its rows: look up rows and pick from these, or put ad.densify around it to "
            "accept a dense one"
        )
    values = emit(op.reshape(cotangent, [rows.count, rows.width]))
    return [row_sparse_cotangent(x, rows.places, values), None]


RULES = dict.fromkeys(("relax.gather_nd", "relax.gather_elements", "relax.index_tensor"), _read)

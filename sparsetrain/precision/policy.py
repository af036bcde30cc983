# SPDX-License-Identifier: Apache-2.0
"""Which operators compute in half precision: a value that a user can read and extend.

- `always`: operators whose operands are rounded, if they are products that are worth it. What they
  sum is float32.
- `neighbours`: operators that follow. A value that is read by `always` and `neighbours` alone is
  stored in half precision; the neighbours widen what they read and compute in float32.
- Every other operator: never. A value that one of those reads is stored in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tvm import tirx


class Policy(NamedTuple):
    """How a program in float32 becomes one in mixed precision.

    Attributes
    ----------
    dtype : str
        ``"bfloat16"`` or ``"float16"``.
    always : mapping of str to callable
        Relax operators that round their operands, each with a test of the call.
    neighbours : frozenset of str
        Relax operators that may read a rounded value.

    Examples
    --------
    >>> policy = BFLOAT16._replace(neighbours=BFLOAT16.neighbours | {"relax.max"})
    """

    dtype: str
    always: dict[str, Callable[[Any], bool]]
    neighbours: frozenset[str]

    def rounds(self, call: Any) -> bool:
        """Whether the operands of a call of a Relax operator are rounded."""
        test = self.always.get(call.op.name)
        return test is not None and test(call)


def is_wide_product(call: Any) -> bool:
    """A float32 product of matrices, none of which is a single row or column.

    Those read every number once: there is nothing to gain, and a model's last layer, whose output
    is a logit, keeps its precision.
    """
    types = [call.ty, *(operand.ty for operand in call.args)]
    return all(
        t.ndim == 2 and t.shape is not None and str(t.dtype) == "float32" for t in types
    ) and not any(_is_one(extent) for t in types for extent in t.shape)


def _is_one(extent: tirx.Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


BFLOAT16 = Policy(
    "bfloat16",
    {"relax.matmul": is_wide_product},
    frozenset({"relax.greater", "relax.collapse_sum_to", "relax.sum"}),
)

FLOAT16 = BFLOAT16._replace(dtype="float16")

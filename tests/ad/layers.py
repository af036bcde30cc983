# SPDX-License-Identifier: Apache-2.0
"""One line per use of a rule for a layer: batch norm, attention, einsum."""

from collections.abc import Callable

from tvm import relax
from tvm.relax import op

from tests.ad.cases import Case

X = {"x": ("B", 3)}
SCALES = {"gamma": (3,), "beta": (3,), "mean": (3,), "variance": (3,)}
QKV = {"q": ("B", 4, 2, 3), "k": ("B", 5, 2, 3), "v": ("B", 5, 2, 2)}


def _field(expr: relax.Expr, index: int) -> relax.Expr:
    return relax.TupleGetItem(relax.BlockBuilder.current().emit(expr), index)


def _emit(expr: relax.Expr) -> relax.Expr:
    return relax.BlockBuilder.current().emit(expr)


def _batch_norm(index: int, **attributes) -> Callable[..., relax.Expr]:
    """The batch norm of `x`, or its new mean or variance; the old variance is positive."""

    def body(x, gamma, beta, mean, variance):
        given = gamma, beta, mean, _emit(op.exp(variance))
        more = {"axis": 1, "training": False, **attributes}
        return _field(op.nn.batch_norm(x, *given, **more), index)

    return body


def _case(rule: str, what: str, shapes: dict, body: Callable, dtype: str = "float64") -> Case:
    name = f"{rule} {what}".strip()
    return Case(name, f"relax.{rule}", shapes, lambda **args: body(*args.values()), dtype=dtype)


# subscripts, shapes
EINSUMS = [
    ("ij,jk", ((2, 3), (3, 4))),
    ("kb,bj", ((2, "B"), ("B", 4))),
    ("bij->j", (("B", 4, 3),)),
    ("ij->", (("B", 3),)),
    ("ij,jk->", (("B", 3), (3, 2))),
    ("ii->i", ((3, 3),)),
    ("ii", ((3, 3),)),
    ("iji,bi->bj", ((3, 2, 3), ("B", 3))),
    ("...j,jk->...k", (("B", 4, 3), (3, 2))),
    ("...i,...i->...", (("B", 4, 3), (4, 3))),
    ("bij,bij->bi", (("B", 1, 3), ("B", 4, 3))),
    ("bij,bij->bi", (("B", 1, 3), ("B", 1, 3))),
    ("bhm,bdm,hk->bhkd", (("B", 3, 2), ("B", 4, 2), (3, 5))),
]


def _einsums() -> list[Case]:
    return [
        _case(
            "einsum",
            f"{letters} of {shapes}",
            dict(zip("xyz", shapes, strict=False)),
            lambda *operands, letters=letters: op.einsum(list(operands), letters),
        )
        for letters, shapes in EINSUMS
    ]


CASES = [
    _case("nn.batch_norm", "", X | SCALES, _batch_norm(0)),
    _case("nn.batch_norm", "by the last axis", {"x": ("B", 2, 3)} | SCALES, _batch_norm(0, axis=2)),
    _case("nn.batch_norm", "that moves nothing", X | SCALES, _batch_norm(2)),
    _case(
        "nn.batch_norm",
        "without scale and center",
        {"x": (2, 3, "B")} | SCALES,
        _batch_norm(0, center=False, scale=False),
    ),
    _case("nn.attention", "", QKV, op.nn.attention),
    _case("nn.attention", "scaled", QKV, lambda *qkv: op.nn.attention(*qkv, scale=0.7)),
    *(
        _case(
            "nn.attention_bias",
            f"{mask}",
            QKV | {"bias": bias},
            lambda *given, mask=mask: op.nn.attention(*given, causal_mask=mask),
        )
        for mask, bias in [
            (None, ("B", 2, 4, 5)),
            ("TopLeft", ("B", 1, 4, 5)),
            ("BottomRight", ("B", 2, 4, 5)),
        ]
    ),
    _case("collapse_sum_to", "", {"x": (2, 4, 3)}, lambda x: op.collapse_sum_to(x, (4, 1))),
    _case(
        "collapse_sum_like",
        "",
        {"x": (2, 4, 3), "y": (4, 1)},
        lambda x, y: op.multiply(op.collapse_sum_like(x, op.exp(y)), y),
    ),
    _case("eye_like", "", {"x": (3, 3)}, lambda x: op.add(op.eye_like(op.exp(x)), x)),
    *_einsums(),
]

# SPDX-License-Identifier: Apache-2.0
"""One line per use of a rule for a layer: norms, attention, convolutions, pools; and for orders."""

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
        return _field(op.nn.batch_norm(x, *given, **{"axis": 1, **attributes}), index)

    return body


def _all_of_batch_norm(x, gamma, beta, mean, variance):
    norm = op.nn.batch_norm(x, gamma, beta, mean, variance, 1, training=True, momentum=0.3)
    y, mean, variance = (_field(_emit(norm), n) for n in range(3))
    return op.multiply(op.add(y, mean), op.exp(variance))


def _case(rule: str, what: str, shapes: dict, body: Callable, dtype: str = "float64") -> Case:
    name = f"{rule} {what}".strip()
    return Case(name, f"relax.{rule}", shapes, lambda **args: body(*args.values()), dtype=dtype)


def _pools(name: str, **more) -> list[Case]:
    """A pool of one, two and three dimensions, at borders and with gaps."""
    one, two, three = (getattr(op.nn, f"{name}_pool{n}d") for n in (1, 2, 3))
    table = [
        (1, "with gaps", ("B", 2, 9), lambda x: one(x, 3, 1, (3, 2), 2, **more)),
        (1, "rounded up", (2, 3, "N"), lambda x: one(x, 3, 2, (1, 1), ceil_mode=True, **more)),
        (1, "channels last", ("B", 9, 2), lambda x: one(x, 3, 2, (1, 0), layout="NWC", **more)),
        (2, "", ("B", 2, 7, 5), lambda x: two(x, (3, 2), 2, (1, 0, 1, 1), **more)),
        (3, "", (2, 2, 4, 5, 3), lambda x: three(x, (3, 2, 2), 2, **more)),
    ]
    mark = "counting borders" if more.get("count_include_pad") else ""
    return [
        _case(f"nn.{name}_pool{n}d", f"{what} {mark}".strip(), {"x": shape}, body)
        for n, what, shape, body in table
    ]


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


# dimensions, x, weight, attributes
CONVOLUTIONS = [
    (1, ("B", 3, 7), (4, 3, 3), {}),
    (1, ("B", 4, 7), (6, 2, 3), {"strides": 2, "padding": (1, 2), "dilation": 2, "groups": 2}),
    (1, ("B", 7, 4), (3, 4, 5), {"data_layout": "NWC", "kernel_layout": "WIO"}),
    (1, (2, 3, "N"), (4, 3, 3), {"padding": 1}),
    (2, ("B", 4, 7, 5), (6, 2, 3, 2), {"strides": (2, 1), "padding": (1, 0, 0, 1), "groups": 2}),
    (3, (2, 2, 4, 5, 3), (3, 2, 2, 2, 2), {}),
]
TRANSPOSED = [
    (
        1,
        ("B", 4, 5),
        (4, 3, 3),
        {"strides": 2, "padding": (1, 0), "output_padding": 1, "groups": 2},
    ),
    (2, ("B", 4, 5, 3), (4, 3, 3, 2), {"strides": 2, "padding": (1, 0, 0, 1), "dilation": (1, 2)}),
    (3, (2, 2, 2, 3, 2), (2, 3, 2, 2, 2), {"strides": 2}),
]


def _convolutions(table: list, suffix: str) -> list[Case]:
    return [
        _case(
            f"nn.conv{n}d{suffix}",
            ", ".join(f"{key} {value}" for key, value in attributes.items()),
            {"x": x, "w": w},
            lambda x, w, n=n, attributes=attributes: getattr(op.nn, f"conv{n}d{suffix}")(
                x, w, **attributes
            ),
        )
        for n, x, w, attributes in table
    ]


CASES = [
    _case("sort", "over a batch", X, lambda x: op.sort(x, 0)),
    _case("sort", "from the largest", X, lambda x: op.sort(x, -1, descending=True)),
    _case("topk", "with ids", X, lambda x: _field(op.topk(x, 2, 1), 0)),
    _case("topk", "of a batch, the smallest", X, lambda x: op.topk(x, 2, 0, "values", False)),
    _case("prod", "of all", X, lambda x: op.prod(x)),
    _case("prod", "over a batch", X, lambda x: op.prod(x, [0])),
    _case("prod", "axis kept", {"x": (2, 3, 2)}, lambda x: op.prod(x, [-1, 0], keepdims=True)),
    _case("cumprod", "over a batch", X, lambda x: op.cumprod(x, 0)),
    _case("cumprod", "of all", X, lambda x: op.cumprod(x)),
    _case("cumprod", "without one's own", X, lambda x: op.cumprod(x, -1, exclusive=True)),
    _case("atan2", "", {"y": ("B", 3), "x": (3,)}, op.atan2),
    _case("mod", "", {"x": ("B", 3), "y": (3,)}, lambda x, y: op.mod(x, op.exp(y))),
    _case("floor_mod", "", {"x": ("B", 3), "y": (3,)}, lambda x, y: op.floor_mod(x, op.exp(y))),
    _case("floor_divide", "", {"x": ("B", 3), "y": (3,)}, op.floor_divide),
    _case("nn.batch_norm", "in training", X | SCALES, _batch_norm(0, training=True)),
    _case(
        "nn.batch_norm",
        "by the last axis",
        {"x": ("B", 2, 3)} | SCALES,
        _batch_norm(0, training=True, axis=-1),
    ),
    _case("nn.batch_norm", "all that it gives", X | SCALES, _all_of_batch_norm),
    _case("nn.batch_norm", "not in training", X | SCALES, _batch_norm(0, training=False)),
    _case("nn.batch_norm", "that moves nothing", X | SCALES, _batch_norm(2, training=False)),
    _case(
        "nn.batch_norm",
        "without scale and center",
        {"x": (2, 3, "B")} | SCALES,
        _batch_norm(0, training=True, center=False, scale=False),
    ),
    _case(
        "nn.group_norm",
        "",
        {"x": ("B", 4, 5), "gamma": (4,), "beta": (4,)},
        lambda x, gamma, beta: op.nn.group_norm(x, gamma, beta, 2, 1, [2]),
        "float32",
    ),
    _case(
        "nn.instance_norm",
        "",
        {"x": ("B", 4, 5), "gamma": (4,), "beta": (4,)},
        lambda x, gamma, beta: op.nn.instance_norm(x, gamma, beta, 1, [2]),
        "float32",
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
    *_convolutions(CONVOLUTIONS, ""),
    *_convolutions(TRANSPOSED, "_transpose"),
    *_pools("max"),
    *_pools("avg"),
    *_pools("avg", count_include_pad=True),
]

# SPDX-License-Identifier: Apache-2.0
"""One line per use of a rule that is TVM's: ranks, broadcasting, axes from the end."""

from tvm.relax import op

from tests.ad.cases import Case

X = {"x": ("B", 3)}
BROADCAST = [
    {"x": ("B", 3), "y": (3,)},
    {"x": ("B", 1), "y": (1, 3)},
    {"x": (), "y": ("B", 3)},
    {"x": ("B", 2, 3), "y": ("B", 1, 3)},
]
PRODUCTS = [
    ((3,), (3,)),
    (("B", 3), (3,)),
    ((3,), ("B", 3, 4)),
    (("B", 2, 3), (3, 4)),
    ((2, 3), ("B", 3, 4)),
    (("B", 1, 2, 3), (1, 4, 3, 2)),
]
UNARY = ["cos", "exp", "negative", "sigmoid", "sin", "tanh"]


def _case(rule: str, shapes: dict, body) -> Case:
    text = ", ".join("x".join(map(str, shape)) or "a number" for shape in shapes.values())
    return Case(f"{rule} of {text}", f"relax.{rule}", shapes, lambda **args: body(*args.values()))


CASES = [
    *(_case(name, X, getattr(op, name)) for name in UNARY),
    _case("log", X, lambda x: op.log(op.exp(x))),
    _case("sqrt", X, lambda x: op.sqrt(op.exp(x))),
    _case("nn.silu", X, op.nn.silu),
    *(
        _case(name, shapes, getattr(op, name))
        for name in ("add", "subtract", "multiply", "maximum", "minimum")
        for shapes in BROADCAST
    ),
    *(_case("divide", s, lambda x, y: op.divide(x, op.exp(y))) for s in BROADCAST),
    *(_case("matmul", {"x": a, "y": b}, op.matmul) for a, b in PRODUCTS),
    _case("sum", X, lambda x: op.sum(x, axis=[-1])),
    _case("sum", {"x": ("B", 2, 3)}, lambda x: op.sum(x, axis=[-1, 0], keepdims=True)),
    _case("nn.softmax", {"x": ("B", 3, 2)}, lambda x: op.nn.softmax(x, axis=-2)),
    _case("nn.log_softmax", {"x": (2, 3, 2)}, lambda x: op.nn.log_softmax(x, axis=0)),
    _case("permute_dims", {"x": ("B", 3, 2)}, lambda x: op.permute_dims(x, [-1, 0, 1])),
    _case("expand_dims", X, lambda x: op.expand_dims(x, [0, -1])),
    _case("broadcast_to", {"x": (2, 1)}, lambda x: op.broadcast_to(x, [4, 2, 3])),
    _case("triu", {"x": (2, 3, 3)}, lambda x: op.triu(x, 1)),
    _case("nn.conv2d", {"x": (2, 3, 5, 4), "w": (4, 3, 3, 2)}, lambda x, w: op.nn.conv2d(x, w)),
    _case("nn.max_pool2d", {"x": (2, 3, 4, 4)}, lambda x: op.nn.max_pool2d(x, 2, 2)),
    _case("nn.avg_pool2d", {"x": (2, 3, 4, 4)}, lambda x: op.nn.avg_pool2d(x, 2, 2)),
]

# SPDX-License-Identifier: Apache-2.0
"""Operands that a kernel takes to be as long as one another are compared before it runs."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import sparsetrain as st
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.models.interaction.operator import interaction
from tests.helpers import UNOPTIMIZED

DTYPES = dict.fromkeys(("ids", "more_ids", "offsets"), "int64")


def function(body, **shapes) -> tvm.IRModule:
    """A function `out` of tensors; those in `DTYPES` are int64, others float32."""
    letters = {n: tvm.tirx.Var(n, "int64") for n in "BC"}
    variables = []
    for name, shape in shapes.items():
        extents = [letters[n] if n in letters else int(n) for n in shape]
        ty = relax.TensorType(extents, DTYPES.get(name, "float32"))
        variables.append(relax.Var(name, ty))
    builder = relax.BlockBuilder()
    with builder.function("out", variables):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(body(*variables)))
        builder.emit_func_output(out)
    return builder.get()


# Operator, and which use of it -> how it is called, its operands' shapes, and what must be equal.
TRUSTING = {
    "einsum": (lambda x, y: op.einsum([x, y], "bd,bd->b"), {"x": "B4", "y": "C4"}, "C equal to B"),
    "einsum with dots": (
        lambda x, y: op.einsum([x, y], "...d,...d->..."),
        {"x": "B4", "y": "C4"},
        "C equal to B",
    ),
    "matmul": (lambda x, y: op.matmul(x, y), {"x": "4B", "y": "C3"}, "B equal to C"),
    "gather_elements": (
        lambda x, ids: op.gather_elements(x, ids, axis=1),
        {"x": "B4", "ids": "C1"},
        "C at most B",
    ),
    "broadcast_to": (
        lambda x, y: op.broadcast_to(y, (x.ty.shape[0], 4)),
        {"x": "B4", "y": "C4"},
        "C equal to B",
    ),
    "nn.nll_loss": (
        lambda x, ids: op.nn.nll_loss(x, ids),
        {"x": "B4", "ids": "C"},
        "B equal to C",
    ),
    "nn.cross_entropy_with_logits": (
        lambda x, y: op.nn.cross_entropy_with_logits(x, y),
        {"x": "B4", "y": "C4"},
        "B equal to C",
    ),
    "nn.attention": (
        lambda x, y: op.nn.attention(x, y, y),
        {"x": "B428", "y": "C428"},
        "C equal to B",
    ),
    "nn.attention with keys": (
        lambda x, y, z: op.nn.attention(x, y, z),
        {"x": "2428", "y": "2B28", "z": "2C28"},
        "C equal to B",
    ),
    "nn.attention_bias": (
        lambda x, y: op.nn.attention(x, x, x, y),
        {"x": "B428", "y": "C244"},
        "C equal to B",
    ),
    "gather_nd": (
        lambda x, ids: op.gather_nd(x, ids, batch_dims=1),
        {"x": "B4", "ids": "C1"},
        "C equal to B",
    ),
    "sparsetrain.interaction": (
        lambda x, y: interaction(x, y),
        {"x": "B8", "y": "C38"},
        "C equal to B",
    ),
    "sparsetrain.embedding_bag": (
        lambda table, ids, offsets, y: st.embedding.embedding_bag(table, ids, offsets, y),
        {"table": "44", "ids": "B", "offsets": "3", "y": "C"},
        "C equal to B",
    ),
}


def arrays(shapes: dict[str, str], **extents: int) -> dict[str, np.ndarray]:
    shaped = {name: [extents.get(n) or int(n) for n in shape] for name, shape in shapes.items()}
    zeros = {name: np.zeros(shape, "int64") for name, shape in shaped.items()}
    made = {name: np.ones(shape, "float32") for name, shape in shaped.items()}
    made |= {name: zeros[name] for name in DTYPES if name in zeros}
    if "offsets" in made:
        made["offsets"][1:] = len(made["ids"])
    return made


@pytest.mark.parametrize("name", TRUSTING)
def test_operands_whose_lengths_have_two_letters_are_compared_in_every_call(name):
    operator, (body, shapes, needs) = name.split(" ")[0], TRUSTING[name]
    program = st.Program(function(body, **shapes), "out", UNOPTIMIZED)
    shorter = arrays(shapes, B=4, C=2) if "at most" not in needs else arrays(shapes, B=2, C=4)
    with pytest.raises(
        DataError, match=rf"^relax\.{operator} of \(.* needs {needs}, with .* = . of "
    ):
        program(shorter, {})
    program(arrays(shapes, B=4, C=4), {})


def test_a_length_is_compared_with_a_number():
    program = st.Program(function(lambda x: op.squeeze(x, [0]), x="B4"), "out")
    with pytest.raises(DataError, match=r"^relax\.squeeze of \(B, 4\) needs B equal to 1, with"):
        program(arrays({"x": "B4"}, B=2), {})
    program(arrays({"x": "B4"}, B=1), {})


def _cut(x, begin, end, stride=1):
    return op.strided_slice(x, [0], [begin], [end], [stride], assume_inbound=True)


# What is cut of x (5, 4), or of x (B, 4) -> what it needs; where that is None it is right.
CUTS = {
    "slice": (lambda x: _cut(x, 1, 9), "9 at most"),
    "slice from before the front": (lambda x: _cut(x, -2, 3), "0 at most -2"),
    "slice that ends before it begins": (lambda x: _cut(x, 3, 2), "3 at most 2"),
    "slice in reverse": (lambda x: _cut(x, 9, 1, -1), "10 at most"),
    "split at places": (lambda x: op.split(x, [3, 9])[1], "9 at most"),
    "split at falling places": (lambda x: op.split(x, [3, 2])[1], "3 at most 2"),
    "split into parts": (lambda x: op.split(x, 4)[3], "at most"),
    "slice inside": (lambda x: _cut(x, 1, 5), None),
    "slice in reverse inside": (lambda x: _cut(x, 4, -1, -1), None),
    "split inside": (lambda x: op.split(x, [2, 5])[1], None),
    "split into parts, the last shorter": (lambda x: op.split(x, 3)[2], None),
}


@pytest.mark.parametrize("name", CUTS)
def test_what_is_cut_outside_is_refused_when_lengths_are_known(name):
    body, needs = CUTS[name]
    made, called = function(body, x="54"), function(body, x="B4")
    if needs is None:
        st.Program(made, "out", UNOPTIMIZED)(arrays({"x": "54"}), {})
        st.Program(called, "out", UNOPTIMIZED)(arrays({"x": "B4"}, B=5), {})
        return
    words = rf"^relax\.(strided_slice|split) of \(., 4\) needs .*{needs}"
    with pytest.raises(ConfigError, match=words):
        st.Program(made, "out")
    with pytest.raises((ConfigError, DataError), match=words):
        st.Program(called, "out")(arrays({"x": "B4"}, B=5), {})


def test_a_slice_without_a_derivative_says_how_to_cut_instead():
    def loss(x, inside):
        end = x.ty.shape[0] - 1
        return op.sum(op.exp(op.strided_slice(x, [0], [0], [end], assume_inbound=inside)))

    refused, taken = (function(lambda x, i=i: loss(x, i), x="B4") for i in (False, True))
    with pytest.raises(ConfigError, match=r"^relax.strided_slice: no derivative .*assume_inbound"):
        st.value_and_grad(refused, "out")
    _, found = st.value_and_grad(taken, "out", ["x"])({"x": np.zeros((3, 4), "float32")}, {})
    np.testing.assert_array_equal(found["x"].numpy(), [[1] * 4, [1] * 4, [0] * 4])
    with pytest.raises(DataError, match="needs 0 at most B - 1"):
        st.value_and_grad(taken, "out", ["x"])({"x": np.zeros((0, 4), "float32")}, {})


@pytest.mark.parametrize("make", [st.Program, st.value_and_grad])
@pytest.mark.parametrize("end", [lambda x, y: x.ty.shape[0] // 2, lambda x, y: y.ty.shape[0]])
def test_a_slice_to_letters_that_tvm_cannot_compile_says_how_to_cut_instead(make, end):
    def loss(x, y, inside):
        part = op.strided_slice(x, [0], [0], [end(x, y)], assume_inbound=inside)
        return op.add(op.sum(op.exp(part)), op.sum(y))

    shapes = {"x": "B4", "y": "C4"}
    refused, taken = (function(lambda x, y, i=i: loss(x, y, i), **shapes) for i in (False, True))
    with pytest.raises(ConfigError, match=r"^TVM cannot compile relax.strided_slice of .*inbound"):
        make(refused, "out").compile()
    assert make(taken, "out", target=UNOPTIMIZED).compile().is_compiled


def test_a_length_that_divides_by_nothing_is_named():
    def body(x, y):
        return op.broadcast_to(x, (x.ty.shape[0] // y.ty.shape[0], 4))

    shapes = {"x": "B4", "y": "C"}
    program = st.Program(function(body, **shapes), "out", UNOPTIMIZED)
    assert program(arrays(shapes, B=2, C=1), {}).shape == (2, 4)
    with pytest.raises(DataError, match=r"^relax\.broadcast_to of .* divides by 0, with B = 2"):
        program({"x": np.ones((2, 4), "float32"), "y": np.ones(0, "float32")}, {})


def test_a_function_of_python_may_say_its_shape_late():
    tvm.register_global_func("tests.twice", lambda x, y: tvm.runtime.tensor(x.numpy() * 2))
    unknown = relax.TensorType(ndim=2, dtype="float32")
    module = function(
        lambda x, y: op.call_pure_packed("tests.twice", x, y, ty_args=unknown), x="B4", y="B4"
    )
    given = arrays({"x": "B4", "y": "B4"}, B=3)
    np.testing.assert_array_equal(st.Program(module, "out")(given, {}).numpy(), 2 * given["x"])


def test_an_axis_of_length_one_is_repeated_and_fewer_rows_may_be_gathered():
    einsum = function(lambda x, y: op.einsum([x, y], "bd,bd->bd"), x="B4", y="14")
    assert st.Program(einsum, "out")(arrays({"x": "B4", "y": "14"}, B=3), {}).shape == (3, 4)
    shapes = {"x": "B4", "ids": "C1"}
    gather = function(lambda x, ids: op.gather_elements(x, ids, axis=1), **shapes)
    assert st.Program(gather, "out")(arrays(shapes, B=5, C=2), {}).shape == (2, 1)


def test_what_a_private_function_takes_for_granted_is_compared_too():
    shapes = {"x": "B4", "y": "C4"}
    module = function(lambda x, y: op.einsum([x, y], "bd,bd->b"), **shapes)
    builder = relax.BlockBuilder(module)
    given = [
        relax.Var(name, relax.TensorType((tvm.tirx.Var(letter, "int64"), 4), "float32"))
        for name, letter in {"x": "M", "y": "N"}.items()
    ]
    inner = module["out"].without_attr("global_symbol")
    called = builder.add_func(relax.utils.copy_with_new_vars(inner), "inner")
    with builder.function("outer", given):
        with builder.dataflow():
            out = builder.emit_output(relax.Call(called, given))
        builder.emit_func_output(out)
    program = st.Program(builder.get(), "outer")
    with pytest.raises(DataError, match=r"einsum of \(M, 4\) and \(N, 4\) needs N equal to M"):
        program(arrays(shapes, B=4, C=2), {})
    assert program(arrays(shapes, B=4, C=4), {}).shape == (4,)


def test_a_gradient_compares_too():
    shapes = {"x": "B4", "y": "C4"}
    module = function(lambda x, y: op.sum(op.einsum([x, y], "bd,bd->b")), **shapes)
    with pytest.raises(DataError, match=r"einsum of \(B, 4\) and \(C, 4\) needs C equal to B"):
        st.value_and_grad(module, "out")(arrays(shapes, B=4, C=2), {})


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("add", lambda x, y: op.add(x, y)),
        ("where", lambda x, y: op.where(op.greater(x, relax.const(0.0)), x, y)),
        ("concat", lambda x, y: op.concat([x, y], axis=1)),
        ("stack", lambda x, y: op.stack([x, y], axis=1)),
        ("nn.rms_norm", lambda x, y: op.nn.rms_norm(x, y, axes=[-2, -1])),
    ],
)
@pytest.mark.parametrize("make", [st.Program, st.value_and_grad])
def test_a_result_whose_shape_nobody_knows_is_refused_with_its_operands(name, body, make):
    module = function(lambda x, y: op.sum(body(x, y)), x="B4", y="C4")
    wanted = rf"relax\.{name} of .*\(B, 4\) and \(C, 4\): the shape of the result is unknown"
    with pytest.raises(ConfigError, match=wanted):
        make(module, "out")


def test_a_tuple_of_results_whose_shapes_nobody_knows_is_refused():
    module = function(lambda x, y: op.nn.batch_norm(x, y, y, y, y, axis=0)[0], x="B4", y="C")
    with pytest.raises(ConfigError, match=r"^relax\.nn\.batch_norm of \(B, 4\), .* and \(C\): the"):
        st.Program(module, "out")

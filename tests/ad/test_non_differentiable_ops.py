# SPDX-License-Identifier: Apache-2.0
"""Every operator of TVM has a derivative, needs none, or is refused on one line with a way out."""

import pytest
from tvm import relax
from tvm.ir import Op
from tvm.relax import op

import sparsetrain as st
from sparsetrain.ad.non_differentiable_ops import WITHOUT
from sparsetrain.ad.rules import DENSE
from tests.ad.cases import Case, build

# What TVM makes of a program, and what calls functions: nothing that a model is written in.
INNER = (
    *("relax.vm.", "relax.memory.", "relax.builtin.", "relax.inspect.", "relax.dist."),
    *("relax.ccl.", "relax.grad.", "relax.call_", "relax.invoke_", "relax.sparsetrain."),
)
# Their results are whole numbers, truths, shapes or nothing; or depend on no argument.
NO_FLOATS = {
    *("argmax", "argmin", "argsort", "bucketize", "nonzero", "one_hot", "shape_of", "size"),
    *("isfinite", "isinf", "isnan", "logical_and", "logical_not", "logical_or", "logical_xor"),
    *("bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"),
    *("arange", "eye", "hamming_window", "null_value", "shape_to_tensor", "tensor_to_shape"),
    *("assert_op", "print", "make_closure"),
}


def _is_of_models(name: str) -> bool:
    return name.startswith("relax.") and not name.startswith(INNER)


def _has_rule(name: str) -> bool:
    return name in DENSE or Op.get(name).get_attr("FPrimalGradient") is not None


def test_every_operator_has_a_derivative_or_a_way_out():
    names = {name for name in Op.list_op_names() if _is_of_models(name)}
    constant = {f"relax.{name}" for name in NO_FLOATS}
    assert constant <= names
    assert {name for name in names - constant if not _has_rule(name)} == set(WITHOUT)


def test_those_without_a_derivative_are_operators():
    assert set(WITHOUT) <= set(Op.list_op_names())


def _first(expr):
    return relax.TupleGetItem(relax.BlockBuilder.current().emit(expr), 0)


IMAGE = {"x": (1, 1, 4, 4)}
REFUSED = [
    ("nn.dropout", {"x": (3,)}, lambda x: _first(op.nn.dropout(x, 0.1)), "models.Dropout"),
    ("median", {"x": (3,)}, op.median, "sort and strided_slice"),
    ("image.resize2d", IMAGE, lambda x: op.image.resize2d(x, (2, 2)), "before the model"),
    ("nn.adaptive_avg_pool2d", IMAGE, lambda x: op.nn.adaptive_avg_pool2d(x), "avg_pool1d"),
    ("nn.pixel_shuffle", {"x": (4, 2, 2)}, lambda x: op.nn.pixel_shuffle(x, 2), "permute_dims"),
    ("ewise_fma", {"x": (3,)}, lambda x: op.ewise_fma(x, x, x), "multiply and add"),
]


@pytest.mark.parametrize(
    ("name", "shapes", "body", "way_out"), REFUSED, ids=[name for name, *_ in REFUSED]
)
def test_an_operator_without_a_derivative_is_refused_on_one_line(name, shapes, body, way_out):
    case = Case(name, f"relax.{name}", shapes, body)
    with pytest.raises(st.errors.ConfigError, match=rf"'relax.{name}' has.*{way_out}") as caught:
        st.value_and_grad(build(case), "loss", list(shapes))
    assert "\n" not in str(caught.value)

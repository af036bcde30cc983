# SPDX-License-Identifier: Apache-2.0
"""Every rule of the table against central differences, and what the rules promise."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import sparsetrain as st
from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.vjp_rules import DENSE, ROW_SPARSE
from sparsetrain.backends.cpu import Cpu
from sparsetrain.backends.cpu.schedule import schedule
from tests.ad import borrowed, cases, layers
from tests.ad.cases import SPARSE_CASES, Case, build, sample
from tests.helpers import UNOPTIMIZED
from tests.models.test_losses import CASES as LOSS_CASES
from tests.ops.test_ragged import CASES as RAGGED_CASES

CASES = cases.CASES + layers.CASES

# Central differences need float64 throughout. TVM's norms have none, and a cast through float32
# is a staircase; both are checked below in another way.
# Rules are judged here, neither LLVM nor the schedule, which would take most of the time: what they
# make of kernels is tested in `schedule`, and beside TVM's own gradients in
# `test_against_gradient.py`.
SMOOTH = [case for case in CASES if case.dtype == "float64" and case.name != "cast"]


def _first_of_each_rule(cases):
    """One case of a rule for activations, one for tables: others are further cases of it."""
    tables = [case.name for case in SPARSE_CASES]
    first = {(case.rule, case.name in tables): case for case in reversed(cases)}
    return [case for case in cases if case in first.values()]


QUICK = _first_of_each_rule(SMOOTH) + _first_of_each_rule(borrowed.CASES)


@pytest.fixture(autouse=True, scope="module")
def _constants_stay():
    """Fold none: TVM compiles and runs a program for each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relax.transform, "FoldConstant", lambda: tvm.transform.Sequential([]))
        yield


@pytest.fixture
def unscheduled(monkeypatch):
    """Leave kernels as operators give them, and keep none of them for other tests."""
    monkeypatch.setattr(Cpu, "schedule", lambda self: schedule()._replace(kernels=()))
    monkeypatch.setenv("SPARSETRAIN_CACHE", "")


def _layer_norm(x, axes, gamma, beta):
    spread = np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    return (x - x.mean(axes, keepdims=True)) / spread * gamma + beta


def _rms_norm(x, axes, weight):
    return x / np.sqrt(np.square(x).mean(axes, keepdims=True) + 0.01) * weight


NORMS = {
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.rms_norm": _rms_norm,
}
NORM_CASES = [case for case in CASES if case.rule in NORMS]


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_rule_agrees_with_central_differences(case, unscheduled):
    _check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", SMOOTH + borrowed.CASES, ids=lambda case: case.name)
def test_so_does_every_use_of_a_rule_in_scheduled_kernels(case):
    _check(case)


def _check(case):
    params, inputs = sample(case)
    program = st.value_and_grad(build(case), "loss", list(case.params), target=UNOPTIMIZED)
    st.ad.check_grads(program, params, inputs, rtol=1e-6, atol=1e-7)


def test_rules_of_tvm_are_not_among_ours():
    assert not {case.rule for case in borrowed.CASES} & set(DENSE)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("abs", {"x": 0.0}, [0.0]),
        ("power", {"x": 0.0, "y": 0.0}, [0.0, 0.0]),
        ("power", {"x": 0.0, "y": 2.0}, [0.0, 0.0]),
        ("power", {"x": 0.0, "y": 1.0}, [1.0, 0.0]),
    ],
)
def test_at_a_kink_the_gradient_is_pytorchs(name, arguments, expected):
    body = getattr(op, name)
    shapes = dict.fromkeys(arguments, ())
    case = Case(name, f"relax.{name}", shapes, lambda **given: body(*given.values()))
    params = {key: np.asarray(value) for key, value in arguments.items()}
    _, found = st.value_and_grad(build(case), "loss", list(params))(params, {})
    np.testing.assert_allclose([g.numpy() / np.cos(1.0) for g in found.values()], expected)


def test_the_deviation_of_equal_numbers_has_gradient_0():
    case = Case("std", "relax.std", {"x": (3,)}, op.std)
    _, found = st.value_and_grad(build(case), "loss", ["x"])({"x": np.ones(3)}, {})
    assert not found["x"].numpy().any()


def test_a_matrix_times_itself_has_a_gradient(unscheduled):
    def gram(x):
        return op.matmul(x, op.permute_dims(x))

    case = Case("gram", "relax.matmul", {"x": ("B", 3)}, gram)
    params, inputs = sample(case)
    program = st.value_and_grad(build(case), "loss", ["x"], target=UNOPTIMIZED)
    st.ad.check_grads(program, params, inputs)


def test_an_einsum_that_sums_axes_without_letters_says_how_to_write_it():
    shapes = {"x": (3, 2), "y": (3, 2)}
    case = Case("", "relax.einsum", shapes, lambda x, y: op.einsum([x, y], "b...,b...->b"))
    with pytest.raises(st.errors.ConfigError, match="write a letter for every axis"):
        st.ad.gradient(build(case), "loss", ["x"])


@pytest.mark.parametrize(
    ("name", "body", "way_out"),
    [
        ("nn.dropout", lambda x: _first(op.nn.dropout(x, 0.1)), "use models.Dropout"),
        ("nn.batch_norm", lambda x: _first(op.nn.batch_norm(x, x, x, x, x, 0)), "use models.Batch"),
        ("sort", lambda x: op.sort(x), "register one with ad.defvjp"),
    ],
)
def test_an_operator_without_a_derivative_is_refused_on_one_line(name, body, way_out):
    case = Case(name, f"relax.{name}", {"x": (3,)}, body)
    with pytest.raises(st.errors.ConfigError, match=rf"relax.{name}.*{way_out}") as caught:
        st.value_and_grad(build(case), "loss", ["x"])
    assert "\n" not in str(caught.value)


def _first(expr):
    return relax.TupleGetItem(emit(expr), 0)


def test_a_border_of_copies_has_no_derivative():
    pad = Case("", "relax.nn.pad", {"x": (3,)}, lambda x: op.nn.pad(x, [1, 1], "reflect"))
    with pytest.raises(st.errors.ConfigError, match="no derivative for mode 'reflect'"):
        st.ad.gradient(build(pad), "loss", ["x"])


def test_a_slice_that_begins_at_a_letter_has_no_derivative():
    def body(x):
        return op.strided_slice(x, axes=[0], begin=[x.ty.shape[0] // 2], end=[x.ty.shape[0]])

    case = Case("", "relax.strided_slice", {"x": ("B", 3)}, body)
    with pytest.raises(st.errors.ConfigError, match="no derivative for a symbolic begin or stride"):
        st.ad.gradient(build(case), "loss", ["x"])


def test_class_weights_that_need_a_gradient_are_refused():
    case = Case(
        "",
        "relax.nn.nll_loss",
        {"x": ("B", 3), "w": (3,)},
        lambda x, w, ids: op.nn.nll_loss(op.multiply(x, w), ids, w),
        {"ids": ("B",)},
    )
    with pytest.raises(st.errors.ConfigError, match="gives no cotangent for argument 2"):
        st.ad.gradient(build(case), "loss", ["x", "w"])


@pytest.mark.parametrize("case", NORM_CASES, ids=lambda case: case.name)
def test_norm_agrees_with_float64_numpy(case, unscheduled):
    params, _ = sample(case)

    def loss(params, _):
        x, *others = params.values()
        y = NORMS[case.rule](x, tuple(range(1, x.ndim)), *others)
        return np.sum(y * np.cos(1.0 + np.arange(y.size)).reshape(y.shape)), gradients

    program = st.value_and_grad(build(case), "loss", list(params), target=UNOPTIMIZED)
    _, found = program(params, {})
    gradients = {name: gradient.numpy().astype(np.float64) for name, gradient in found.items()}
    st.ad.check_grads(loss, params, {}, rtol=1e-4, atol=1e-5)


def test_cast_carries_rows_unchanged(unscheduled):
    case = next(case for case in SPARSE_CASES if case.name == "cast")
    plain = next(case for case in SPARSE_CASES if case.name == "lookup")
    params, inputs = sample(case)
    through, straight = (
        st.value_and_grad(build(c), "loss", ["table"])(params, inputs)[1]["table"]
        .to_dense()
        .numpy()
        for c in (case, plain)
    )
    np.testing.assert_allclose(through, straight, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", SPARSE_CASES, ids=lambda case: case.name)
def test_tables_get_row_sparse_gradients(case):
    gradient = st.ad.gradient(build(case), "loss", list(case.params))
    tables = [name for name in case.params if name != "weights"]
    assert all(isinstance(gradient.structure[name], st.RowSparse) for name in tables)


def test_every_rule_has_a_case():
    covered = {case.rule for case in CASES}
    # Operators on ragged rows have a table of their own; those of softmax are in the losses' one.
    elsewhere = {f"relax.sparsetrain.ragged_{name.split()[0]}" for name in RAGGED_CASES}
    in_losses = {"full softmax": "softmax_loss", "tiled softmax": "tiled_softmax_loss"}
    elsewhere |= {f"relax.sparsetrain.{op}" for case, op in in_losses.items() if case in LOSS_CASES}
    assert (set(DENSE) | set(ROW_SPARSE)) - elsewhere == covered
    ended = {"relax.sparsetrain.densify"}  # its result is dense
    assert set(ROW_SPARSE) - ended <= {case.rule for case in SPARSE_CASES}


@pytest.mark.parametrize("name", ["max", "min"])
def test_equal_extremes_share_the_cotangent(name):
    case = Case(name, f"relax.{name}", {"x": (2, 2)}, lambda x: getattr(op, name)(x, axis=[1]))
    params = {"x": np.array([[3.0, 3.0], [5.0, 5.0]])}
    _, found = st.value_and_grad(build(case), "loss", ["x"])(params, {})
    expected = np.cos([[1.0], [2.0]]) / 2 * np.ones((1, 2))
    np.testing.assert_allclose(found["x"].numpy(), expected)


def test_check_grads_finds_a_wrong_rule(monkeypatch):
    monkeypatch.setitem(DENSE, "relax.square", lambda output, call, cotangent, builder: [cotangent])
    case = next(case for case in CASES if case.name == "square")
    params, inputs = sample(case)
    program = st.value_and_grad(build(case), "loss", ["x"])
    with pytest.raises(st.errors.NumericalError, match="gradient of 'x' is wrong"):
        st.ad.check_grads(program, params, inputs)


@pytest.mark.parametrize(
    ("dtype", "mode", "rows"),
    [("int8", "clip", "N"), ("int8", "wrap", 300), ("uint8", "wrap", "N"), ("int16", "clip", 300)],
)
def test_ids_too_short_to_count_the_rows_get_the_cotangent_where_they_read(
    dtype, mode, rows, unscheduled
):
    def body(x, ids):
        table = x if rows == 300 else emit(op.exp(x))
        return op.take(table, emit(op.astype(ids, dtype)), 0, mode)

    case = Case("take by short ids", "relax.take", {"x": (rows, 2)}, body, {"ids": (4,)})
    program = st.value_and_grad(build(case), "loss", ["x"], target=UNOPTIMIZED)
    params = {"x": np.random.default_rng(0).normal(size=(300, 2))}
    st.ad.check_grads(program, params, {"ids": np.array([100, 120, 7, -1])}, rtol=1e-6, atol=1e-7)

# SPDX-License-Identifier: Apache-2.0
"""Compiled programs: what is in their IR, and the gate through which arrays come in."""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import op
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain import runtime
from sparsetrain.compiler import arguments
from sparsetrain.compiler.program import Program
from sparsetrain.errors import ConfigError, DataError
from tests import small_dlrm
from tests.array_layouts import LAYOUTS

# --- Nothing in the gradient function is as long as a table -------------------------------------

# No other extent of the model comes near these, nor does their sum.
TABLE_ROWS = [10_007 + 17 * feature for feature in range(26)]
FORBIDDEN = {*TABLE_ROWS, sum(TABLE_ROWS)}


def _trainer(kind: str) -> st.Trainer:
    model = st.models.DLRM(
        rows=TABLE_ROWS, bottom=(512, 256, 64), num_dense=13, **small_dlrm.KINDS[kind]
    )
    return st.Trainer(model, st.optim.rowwise_adagrad(0.02))


def table_long(module: tvm.IRModule) -> list[str]:
    """Describe every tensor, parameters apart, one of whose extents is a table's rows."""
    found: list[str] = []
    for function in module.functions.values():
        if isinstance(function, relax.Function):
            params, seen = set(function.params), []
            relax.analysis.post_order_visit(function.body, seen.append)
            found += [line for expr in seen if expr not in params for line in _table_long(expr)]
        else:
            shapes = [getattr(param.ty, "shape", ()) for param in function.params]
            found += [f"buffer {shape}" for shape in shapes if _is_table_long(shape)]
    return found


def _table_long(expr: relax.Expr) -> list[str]:
    tensors = _tensor_types(getattr(expr, "ty", None))
    return [f"{type(expr).__name__} of {ty}" for ty in tensors if _is_table_long(ty.shape)]


def _tensor_types(ty) -> list[relax.TensorType]:
    if isinstance(ty, relax.TupleType):
        return [tensor for field in ty.fields for tensor in _tensor_types(field)]
    return [ty] if isinstance(ty, relax.TensorType) else []


def _is_table_long(shape) -> bool:
    return any(isinstance(n, tvm.tirx.IntImm) and int(n) in FORBIDDEN for n in shape)


@pytest.mark.parametrize("kind", small_dlrm.KINDS)
def test_the_gradient_of_a_full_dlrm_binds_no_tensor_as_long_as_a_table(kind):
    program = _trainer(kind).program
    assert isinstance(program.module, tvm.IRModule)
    (table,) = [p for p in program.module["loss_adjoint"].params if _is_table_long(p.ty.shape)]
    assert table.name == "embeddings.width16.weight"
    assert table_long(program.module) == []


def test_the_search_for_long_tensors_finds_a_densified_gradient():
    trainer = _trainer("single")
    densified = st.value_and_grad(
        trainer.model.export(), "loss", densify=["embeddings.width16.weight"]
    )
    assert any("Call" in line for line in table_long(densified.module))


def test_the_module_is_the_program_before_lowering():
    module = _trainer("single").program.module
    script = module.script()
    assert "R.sparsetrain.lookup" in script and "R.matmul" in script
    assert "call_tir" not in script
    assert "loss" not in [var.name_hint for var in module.functions]


# --- Arguments ----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["single", "weighted"])
def called(request):
    """A program, its parameters, the arrays of a batch and the result it gives."""
    trainer = small_dlrm.trainer(request.param)
    inputs = trainer.model.inputs(small_dlrm.batch(37, kind=request.param))
    return (
        trainer.program,
        trainer.params,
        inputs,
        _numbers(trainer.program, trainer.params, inputs),
    )


def _numbers(program, params, inputs) -> bytes:
    loss, gradients = program(params, inputs)
    leaves = [leaf for g in gradients.values() for leaf in getattr(g, "leaves", (g,))]
    return b"".join(runtime.as_numpy(leaf).tobytes() for leaf in (loss, *leaves))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_program_gives_the_same_bits_however_its_arrays_lie_in_memory(layout, called):
    program, params, inputs, expected = called
    arranged = {name: LAYOUTS[layout](np.asarray(array)) for name, array in inputs.items()}
    assert _numbers(program, params, arranged) == expected


def test_a_program_does_not_keep_or_change_its_arrays(called):
    program, params, inputs, expected = called
    own = {name: array.copy() for name, array in inputs.items()}
    loss, gradients = program(params, own)
    for name, array in own.items():
        np.testing.assert_array_equal(array, inputs[name])
        array[...] = 0
    assert _numbers(program, params, inputs) == expected
    table = gradients["embeddings.width8.weight"]
    np.testing.assert_array_equal(runtime.as_numpy(table.indices), inputs["rows"].ravel())


def test_tensors_and_arrays_can_be_mixed_and_params_win(called):
    program, params, inputs, expected = called
    tensors = {name: runtime.as_tensor(array) for name, array in inputs.items()}
    assert _numbers(program, params, tensors) == expected
    arrays = {name: runtime.as_numpy(tensor) for name, tensor in params.items()}
    assert _numbers(program, arrays, inputs) == expected
    assert _numbers(program, {**params, **inputs}, {"labels": "not looked at"}) == expected


def _change(name, make):
    return lambda inputs: {**inputs, name: make(np.array(inputs[name]))}


def _put(value, *place):
    def change(array):
        array[place] = value
        return array

    return change


TOTAL = sum(small_dlrm.ROWS)
BAD_ARGUMENTS = {
    "a missing argument": (
        lambda inputs: {n: a for n, a in inputs.items() if n != "dense"},
        ConfigError,
        "argument 'dense' of 'loss_adjoint' is missing; given: ",
    ),
    "an id past the end": (
        _change("rows", _put(TOTAL, -1)),
        DataError,
        rf"argument 'rows': id {TOTAL} at \(\d+.*\) is outside the table's {TOTAL} rows",
    ),
    "a negative id": (_change("rows", _put(-1, 0)), DataError, "'rows': id -1 at "),
    "an id beyond int32": (
        _change("rows", lambda rows: rows.astype(np.int64) + 2**40),
        DataError,
        "'rows': values of dtype int64 do not fit int32",
    ),
    "ids that are floats": (
        _change("rows", lambda rows: rows + 0.5),
        DataError,
        "'rows': values of dtype float64 do not fit int32",
    ),
    "text": (
        _change("dense", lambda a: a.astype(str)),
        DataError,
        "'dense': .* is not an array of num",
    ),
    "complex numbers": (_change("dense", lambda a: a + 1j), DataError, "not an array of numbers"),
    "nothing": (
        _change("labels", lambda a: np.full(len(a), None)),
        DataError,
        "not an array of num",
    ),
    "lists of unequal length": (
        lambda inputs: {**inputs, "dense": [[1.0], [1.0, 2.0]]},
        DataError,
        "argument 'dense': setting an array element",
    ),
    "a column too few": (
        _change("dense", lambda a: a[:, :12]),
        DataError,
        r"'dense' must have shape \(B, 13\), not \(37, 12\)",
    ),
    "an axis too many": (
        _change("labels", lambda a: a[:, None]),
        DataError,
        r"'labels' must have shape \(B\), not \(37, 1\)",
    ),
    "a row too few": (
        _change("dense", lambda a: a[1:]),
        DataError,
        "'dense' has B = 36 on axis 0, but 'labels' has B = 37: they must be equal",
    ),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_an_argument_that_does_not_fit_is_refused_in_one_line(case, called):
    change, error, message = BAD_ARGUMENTS[case]
    program, params, inputs, expected = called
    with pytest.raises(error, match=message) as raised:
        program(params, change(inputs))
    assert "\n" not in str(raised.value)
    assert _numbers(program, params, inputs) == expected


def _strided(array):
    return tvm_ffi.from_dlpack(np.repeat(array, 2, axis=-1)[..., ::2])


def _moved_by(count):
    """A tensor of the same numbers that begins so many bytes after its memory."""

    def make(array):
        longer = runtime.as_tensor(np.zeros(array.size + count // 4, array.dtype))
        view = longer._create_view(array.shape, str(array.dtype), count)
        np.from_dlpack(view)[...] = array
        return view

    return make


WRONG_TENSORS = {
    "an axis too many": lambda a: runtime.as_tensor(a[None]),
    "a column too few": lambda a: runtime.as_tensor(a[..., :-1]),
    "another dtype": lambda a: runtime.as_tensor(a, "float64"),
}
NOT_PLAIN = {
    "strides": _strided,
    "an offset": _moved_by(64),
    "an offset inside of a line": _moved_by(4),
}


@pytest.mark.parametrize("name", ["dense", "top.layers.0.weight"])
@pytest.mark.parametrize("case", WRONG_TENSORS)
def test_a_tensor_of_another_kind_is_refused_in_one_line(case, name, called):
    program, params, inputs, expected = called
    wrong = {name: WRONG_TENSORS[case](np.array(runtime.as_numpy((params | inputs)[name])))}
    with pytest.raises(DataError, match=r"must be a tensor float32 \(.*\), not float") as raised:
        program(params | wrong, inputs | wrong)
    assert name in str(raised.value) and "\n" not in str(raised.value)
    assert _numbers(program, params, inputs) == expected


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("case", NOT_PLAIN)
def test_an_input_that_is_laid_out_otherwise_is_copied(case, checked, called):
    program, params, inputs, expected = called
    other = {name: NOT_PLAIN[case](np.array(inputs[name])) for name in inputs}
    assert _numbers(partial(program, checked=checked), params, other) == expected


@pytest.mark.parametrize("case", NOT_PLAIN)
def test_a_parameter_that_is_laid_out_otherwise_is_refused(case, called):
    program, params, inputs, _ = called
    name = "top.layers.0.weight"
    wrong = {name: NOT_PLAIN[case](np.array(runtime.as_numpy(params[name])))}
    with pytest.raises(DataError, match=f"'{name}' is a tensor with strides, an offset, or memory"):
        program(params | wrong, inputs)


BAD_OFFSETS = {
    "a number of them that is not a multiple of the features": (
        lambda offsets: offsets[:-1],
        r"'offsets' has 111 offsets, but must have 3 \* B \+ 1",
    ),
    "none": (lambda offsets: offsets[:0], "'offsets' has 0 offsets"),
    "a first one that is not 0": (_put(1, 0), "'offsets' must rise from 0 to the number of ids"),
    "a last one beyond the ids": (_put(10**6, -1), "'offsets' must rise"),
    "a last one before the end of the ids": (lambda o: np.minimum(o, o[-1] - 1), "must rise"),
    "one that falls": (_put(10**6, 50), "'offsets' must rise"),
}


@pytest.mark.parametrize("case", BAD_OFFSETS)
def test_offsets_that_would_leave_the_ids_are_refused(case):
    change, message = BAD_OFFSETS[case]
    trainer = small_dlrm.trainer("weighted")
    inputs = trainer.model.inputs(small_dlrm.batch(37, kind="weighted"))
    with pytest.raises(DataError, match=message):
        trainer.program(trainer.params, {**inputs, "offsets": change(inputs["offsets"].copy())})


def test_weights_of_another_number_than_the_ids_are_refused():
    trainer = small_dlrm.trainer("weighted")
    inputs = trainer.model.inputs(small_dlrm.batch(37, kind="weighted"))
    with pytest.raises(DataError, match="'weights' has N = .* but 'rows' has N = "):
        trainer.program(trainer.params, {**inputs, "weights": inputs["weights"][1:]})


# --- Programs that are not models ----------------------------------------------------------------


def _module(body, **shapes) -> tvm.IRModule:
    """A function `loss` of float64 tensors `table` and others, and int64 `ids` (N,)."""
    count = tvm.tirx.Var("N", "int64")
    variables = {"ids": relax.Var("ids", relax.TensorType((count,), "int64"))}
    for name, shape in shapes.items():
        variables[name] = relax.Var(name, relax.TensorType(shape, "float64"))
    builder = relax.BlockBuilder()
    with builder.function("loss", list(variables.values())):
        with builder.dataflow():
            out = builder.emit(op.sum(builder.emit(body(variables, builder))))
            output = builder.emit_output(out)
        builder.emit_func_output(output)
    return builder.get()


TABLE = np.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize("make", [st.Program, st.value_and_grad])
def test_what_does_not_hold_arrays_by_name_is_refused(make):
    program = make(_module(lambda v, _: v["table"], table=(4, 3)), "loss")
    for given in ([TABLE], None, 5):
        for pair in ((given, {}), ({}, given)):
            with pytest.raises(ConfigError, match="(params|inputs) is a .*; give a dict of"):
                program(*pair)
        with pytest.raises(ConfigError, match="params is a .*; give a dict of arrays by name"):
            program.place(given)


@pytest.mark.parametrize("make", [st.Program, st.value_and_grad])
def test_what_is_no_module_or_has_no_such_function_is_refused_at_once(make):
    module = _module(lambda v, _: v["table"], table=(4, 3))
    with pytest.raises(ConfigError, match=r"no Relax function 'los' .* it has \['loss'\]"):
        make(module, "los")
    with pytest.raises(ConfigError, match="a tuple is not an IRModule: .* = model.export_tvm"):
        make((module, []), "loss")


@pytest.mark.parametrize("make", [st.Program, st.value_and_grad, st.ad.gradient])
def test_two_arguments_of_one_name_are_refused_at_once(make):
    class Scaled(nn.Module):
        def __init__(self):
            self.w = nn.Parameter((3,), "float32")

        def loss(self, x, w):
            return nn.wrap_nested(op.mean((x * self.w * w)._expr), "loss")

    rows = nn.spec.Tensor(["B", 3], "float32")
    module, _ = Scaled().export_tvm({"loss": {"x": rows, "w": rows}})
    told = (
        "function 'loss' has two arguments called 'w': an input, "
        'R.Tensor((B, 3), dtype="float32"), and a parameter, '
        'R.Tensor((3,), dtype="float32"); rename one of them'
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}$"):
        make(module, "loss")


@pytest.mark.parametrize("count", [1, 5, 100])
def test_one_program_serves_every_length(count, table_program):
    ids = np.random.default_rng(count).integers(0, 4, count)
    loss, gradients = table_program({"table": TABLE}, {"ids": ids})
    assert float(loss.numpy()) == TABLE[ids].sum()
    expected = np.bincount(ids, minlength=4)[:, None] * np.ones(3)
    np.testing.assert_array_equal(gradients["table"].to_dense().numpy(), expected)


@pytest.fixture(scope="module")
def table_program():
    module = _module(lambda v, _: op.take(v["table"], v["ids"], axis=0), table=(4, 3))
    program = st.value_and_grad(module, "loss", ["table"])
    assert program.compile() is program
    return program


@pytest.mark.parametrize("ids", [[4], [-1], [0, 1, 2, 3, 2**62]])
def test_ids_of_any_function_are_checked(ids, table_program):
    with pytest.raises(DataError, match="is outside the table's 4 rows"):
        table_program({"table": TABLE}, {"ids": ids})


LOOKUPS = {
    "rows": (lambda v, _: op.take(v["table"], v["ids"], axis=0), [3], 4),
    "columns": (lambda v, _: op.take(v["table"], v["ids"], axis=1), [2], 3),
    "ids that were cast": (
        lambda v, b: op.take(v["table"], b.emit(op.astype(v["ids"], "int32")), axis=0),
        [3],
        4,
    ),
    "two tables": (
        lambda v, b: op.add(
            b.emit(op.sum(b.emit(op.take(v["table"], v["ids"], axis=0)))),
            b.emit(op.sum(b.emit(op.take(v["small"], v["ids"], axis=0)))),
        ),
        [1],
        2,
    ),
}


@pytest.mark.parametrize("case", LOOKUPS)
def test_the_smallest_axis_that_ids_are_looked_up_in_bounds_them(case):
    body, good, bound = LOOKUPS[case]
    program = st.Program(_module(body, table=(4, 3), small=(2, 3)), "loss")
    params = {"table": TABLE, "small": np.ones((2, 3))}
    assert np.isfinite(float(program(params, {"ids": good}).numpy()))
    with pytest.raises(DataError, match=f"id {bound} at .* outside the table's {bound} rows"):
        program(params, {"ids": [bound]})


@pytest.mark.parametrize(("mode", "row"), [("clip", 3), ("wrap", 1)])
def test_ids_outside_are_legal_where_the_lookup_says_what_they_mean(mode, row):
    module = _module(lambda v, _: op.take(v["table"], v["ids"], axis=0, mode=mode), table=(4, 3))
    loss, gradients = st.value_and_grad(module, "loss", ["table"])({"table": TABLE}, {"ids": [5]})
    assert float(loss.numpy()) == TABLE[row].sum()
    assert gradients["table"].to_scipy().nonzero()[0].tolist() == 3 * [row]


def test_only_what_is_asked_for_is_differentiated():
    module = _module(
        lambda v, b: op.multiply(b.emit(op.take(v["table"], v["ids"], axis=0)), v["row"]),
        table=(4, 3),
        row=(3,),
    )
    arrays = {"table": TABLE, "row": np.array([1.0, 10.0, 100.0]), "ids": [1, 1]}
    _, gradients = st.value_and_grad(module, "loss", ["row"])({}, arrays)
    assert list(gradients) == ["row"]
    np.testing.assert_array_equal(gradients["row"].numpy(), 2 * TABLE[1])


def test_arguments_that_two_threads_bind_at_once_are_not_mixed(monkeypatch):
    trainer = small_dlrm.trainer("single")
    inputs = trainer.model.inputs(small_dlrm.batch(4, 0, "single"))
    known, seen = trainer.program.arguments, []
    require = arguments.Argument.require

    def interrupted(argument, tensor):
        monkeypatch.setattr(arguments.Argument, "require", require)
        seen.append(known.bind(trainer.params, inputs))  # as another thread would, just now
        return require(argument, tensor)

    monkeypatch.setattr(arguments.Argument, "require", interrupted)
    bound = known.bind(trainer.params, inputs)
    assert len(seen[0]) == len(bound) == len(known.by_name)


def test_two_threads_that_predict_at_once_get_what_each_alone_gets():
    # Large enough that neither thread is done before the other begins.
    model = st.models.DLRM(rows=[50, 2000, 7], dim=8, bottom=(64,), top=(64,), num_dense=13)
    trainer = st.Trainer(model, st.optim.sgd(0.1), target="cpu", seed=0)
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((2, 500, 13)).astype(np.float32)
    ids = rng.integers(0, (50, 2000, 7), (2, 500, 3))
    batches = [st.data.Batch(*arrays) for arrays in zip(dense, ids, strict=True)]
    alone = [trainer.predict(batch) for batch in batches]

    def agrees(number: int) -> bool:
        again = (trainer.predict(batches[number]) for _ in range(100))
        return all(np.array_equal(found, alone[number]) for found in again)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(agrees, (0, 1))) == [True, True]


def _summed(*extents):
    builder, letter = relax.BlockBuilder(), tirx.Var("B", "int64")
    shapes = [relax.TensorType([extent(letter)], "float32") for extent in extents]
    variables = [relax.Var(name, shape) for name, shape in zip("xy", shapes, strict=False)]
    with builder.function("main", variables, attrs={"num_input": len(variables)}):
        with builder.dataflow():
            sums = [builder.emit(relax.op.sum(variable)) for variable in variables]
            out = builder.emit_output(builder.emit(relax.op.add(sums[0], sums[-1])))
        builder.emit_func_output(out)
    return Program(builder.get(), "main", "cpu", None)


def test_an_extent_that_letters_make_another_is_refused():
    program = _summed(lambda b: b, lambda b: b + 1)
    assert runtime.as_numpy(program({}, {"x": np.ones(3), "y": np.ones(4)})) == 7
    with pytest.raises(DataError, match=r"argument 'y' has B \+ .*1.* = 7, which must be 4"):
        program({}, {"x": np.ones(3), "y": np.ones(7)})


def test_an_extent_whose_letter_stands_nowhere_alone_is_refused():
    with pytest.raises(ConfigError, match=r"argument 'x' has the extent B \+ .*1.*, but no arg"):
        _summed(lambda b: b + 1)

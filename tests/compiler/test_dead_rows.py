# SPDX-License-Identifier: Apache-2.0
"""Rows that are not read are not computed, and what is read has the same bits."""

from contextlib import nullcontext

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.relax import op

import sparsetrain as st
from sparsetrain import ad
from sparsetrain.compiler.dead_rows import keep_dead_rows
from sparsetrain.compiler.dead_rows.row_rules import RULES
from sparsetrain.embedding import lookup
from sparsetrain.ops import ragged
from sparsetrain.training.scores import logits_inputs
from sparsetrain.training.step import loss_inputs
from tests.golden import programs
from tests.helpers import UNOPTIMIZED, assert_same_bits, slow_except

COUNTS = (3, 0, 1, 17, 9)
ENDS = np.cumsum(COUNTS)
N, B, L, D = int(ENDS[-1]), 5, 6, 4
PLACES, PLACE_ENDS = np.array([0, 2, 0, 3, 16, 8]), np.array([2, 2, 3, 5, 6])
ONES = relax.const(np.linspace(0.5, 2, D, dtype="f4"))
FLOATS = {"x": ["B", L, D], "y": [1, D], "tokens": ["N", D], "k": ["N", D], "bias": ["N", 7]}
FLOATS |= {"factors": ["N", 14]}
PARAMS = {"users": ["B", D], "weight": [D, 6], "table": [9, D], "places of all": [L, D]}
PARAMS |= {"shift": [D]}
INTEGERS = {"ends": ["B"], "places": ["M"], "place_ends": ["B"], "ids": ["B", L]}
INTEGERS |= {"key": [1], "first": [1], "numbers": ["N"]}
LETTERS = {"B": B, "N": N, "M": len(PLACES)}


def arrays():
    rng = np.random.default_rng(0)
    floats = {
        name: rng.normal(size=[LETTERS.get(n, n) for n in shape]).astype("f4")
        for name, shape in (FLOATS | PARAMS).items()
    }
    ids = {"ids": rng.integers(0, 9, (B, L)), "key": np.array([7]), "first": np.array([40])}
    ids |= {"ends": ENDS, "places": PLACES, "place_ends": PLACE_ENDS}
    return floats, ids | {"numbers": rng.integers(0, 99, N)}


class Scope(dict):
    """The arguments of a function by name, as attributes."""

    __getattr__ = dict.__getitem__

    def __init__(self):
        letters = {letter: tirx.Var(letter, "int64") for letter in LETTERS}
        kinds = {**dict.fromkeys(INTEGERS, "int64"), **dict.fromkeys(FLOATS | PARAMS, "float32")}
        shapes = INTEGERS | FLOATS | PARAMS
        for name, kind in kinds.items():
            extents = [letters.get(n, n) for n in shapes[name]]
            self[name] = relax.Var(name, relax.TensorType(extents, kind))

    def begin(self, builder):
        """Make activations of what is given, which depend on a parameter."""
        self.emit = builder.emit
        for name in ("x", "tokens", "k"):
            self[name] = self.emit(op.add(self[name], self.shift))


def module_of(make, read):
    """The sum of the sines of what `read` reads of what `make` makes."""
    builder = relax.BlockBuilder()
    given = Scope()
    arguments = [given[name] for name in (*INTEGERS, *FLOATS, *PARAMS)]
    inputs = len(INTEGERS) + len(FLOATS)
    with builder.function("main", arguments, attrs={"num_input": inputs}):
        with builder.dataflow():
            given.begin(builder)
            rows = builder.emit(read(given, builder.emit(make(given))))
            loss = builder.emit(op.sum(builder.emit(op.sin(rows))))
            output = builder.emit_output(relax.Tuple([loss, rows]))
        builder.emit_func_output(output)
    return builder.get()


READS = {
    "the last": lambda a, x: op.strided_slice(x, [1], [L - 1], [L]),
    "every second": lambda a, x: op.strided_slice(x, [1], [0], [L], [2]),
    "some": lambda a, x: op.take(x, relax.const(np.array([4, 0, -1])), 1),
    "one": lambda a, x: op.take(x, relax.const(np.array(2)), 1),
    "the first of a batch": lambda a, x: op.strided_slice(x, [0], [0], [1]),
}
OF_TOKENS = {
    "last": lambda a, x: ragged.ragged_last(x, a.ends),
    "taken": lambda a, x: ragged.ragged_take(x, a.ends, a.places, a.place_ends),
}


def _above(a, x):
    return a.emit(op.add(a.emit(op.square(x)), relax.const(np.float32(1))))


def _parts(a):
    parts = a.emit(op.split(a.x, 2, -1))
    first, second = (a.emit(relax.TupleGetItem(parts, n)) for n in range(2))
    return op.multiply(first, second)


NAMES = "negative abs square exp sin cos tanh erf sigmoid nn.relu nn.silu nn.gelu nn.gelu_tanh"
BINARY = "add subtract multiply maximum minimum log_add_exp"
COMPARED = "greater greater_equal less less_equal equal not_equal"


def _named(name):
    module, _, short = name.rpartition(".")
    return getattr(op.nn if module else op, short)


def _of(name, **more):
    return name, lambda a: _named(name)(a.x, **more)


def _binary(name):
    return name, lambda a: _named(name)(a.x, a.y)


def _compared(name):
    return name, lambda a: op.where(a.emit(_named(name)(a.x, a.y)), a.x, a.y)


def _both(name):
    def chosen(a):
        sides = (a.emit(op.less(*pair)) for pair in ((a.x, a.y), (a.y, a.x)))
        return op.where(a.emit(_named(name)(*sides)), a.x, a.y)

    return name, chosen


def _positive(name):
    return name, lambda a: _named(name)(_above(a, a.x))


# Operator -> a value that it makes of x (B, L, D), of which some rows are read.
CASES = dict(
    [
        *map(_of, NAMES.split()),
        *map(_binary, BINARY.split()),
        *map(_compared, COMPARED.split()),
        *map(_both, ("logical_and", "logical_or")),
        *map(_positive, ("log", "sqrt", "rsqrt")),
        *(_of(name, axis=[-1], keepdims=True) for name in ("sum", "mean", "max", "min")),
        *(_of(name, axis=-1) for name in ("nn.softmax", "nn.log_softmax")),
        _of("clip", min=-0.5, max=0.5),
        _of("nn.leakyrelu"),
        _of("nn.softplus"),
    ]
) | {
    "where": lambda a: op.where(a.emit(op.less(a.x, a.y)), a.x, a.y),
    "logical_not": lambda a: op.where(a.emit(op.logical_not(a.emit(op.less(a.x, a.y)))), a.x, a.y),
    "astype": lambda a: op.astype(a.emit(op.astype(a.x, "float64")), "float32"),
    "divide": lambda a: op.divide(a.x, _above(a, a.x)),
    "power": lambda a: op.power(_above(a, a.x), a.y),
    "nn.layer_norm": lambda a: op.nn.layer_norm(a.x, ONES, ONES, axes=[-1]),
    "nn.rms_norm": lambda a: op.nn.rms_norm(a.x, ONES, axes=[-1]),
    "split": _parts,
    "concat": lambda a: op.concat([a.x, a.emit(op.cos(a.x))], -1),
    "matmul": lambda a: op.matmul(a.x, a.weight),
    "sparsetrain.lookup": lambda a: op.add(a.emit(lookup(ad.densify(a.table), a.ids)), a.x),
    "take": lambda a: op.add(a.emit(op.take(ad.densify(a.table), a.ids, 0)), a.x),
    "sparsetrain.dropout": lambda a: ad.dropout(a.x, a.key, a.first, rate=0.5),
}
# One for each kind of rule; the others are further cases.
KINDS = (
    "nn.relu add divide nn.layer_norm nn.softmax sum split concat matmul sparsetrain.lookup take "
)
KINDS += "sparsetrain.dropout where"
# The same of tokens (N, D).
CASES_OF_TOKENS = {
    "nn.relu": lambda a: op.nn.relu(a.tokens),
    "add": lambda a: op.add(a.tokens, a.k),
    "nn.layer_norm": lambda a: op.nn.layer_norm(a.tokens, ONES, ONES, axes=[-1]),
    "matmul": lambda a: op.matmul(a.tokens, a.weight),
    "sparsetrain.dropout": lambda a: ad.dropout(a.tokens, a.key, a.numbers, rate=0.5, relu=True),
    "sparsetrain.ragged_expand": lambda a: op.add(
        a.emit(ragged.ragged_expand(a.users, a.ends, a.tokens)), a.tokens
    ),
    "sparsetrain.ragged_attention": lambda a: ragged.ragged_attention(
        a.tokens, a.k, a.k, a.ends, heads=2, causal=True
    ),
    "sparsetrain.ragged_scaled_attention": lambda a: ragged.ragged_attention(
        a.tokens, a.k, a.k, a.ends, a.factors, heads=2
    ),
    "sparsetrain.ragged_silu_attention": lambda a: ragged.ragged_silu_attention(
        a.tokens, a.k, a.k, a.bias, a.ends, heads=2, scale=0.3
    ),
}


def both(make, read, target=UNOPTIMIZED):
    """Results of a function and its gradients with all rows and without dead ones."""
    module, (floats, ids) = module_of(make, read), arrays()
    found = []
    for kept in (True, False):
        with keep_dead_rows() if kept else nullcontext():
            wrt = _reached(module)
            program = st.value_and_grad(module, "main", wrt, target=target)
        results, gradients = program(floats, ids)
        named = dict(zip(("loss", "rows"), results, strict=True)) | gradients
        found.append({name: np.asarray(each.numpy()) for name, each in named.items()})
    return program, *found


def _reached(module):
    """The parameters that the loss depends on."""
    (function,) = module.functions.values()
    read = {
        v.name for b in function.body.blocks[0].bindings for v in relax.analysis.free_vars(b.value)
    }
    return [name for name in PARAMS if name in read]


def assert_same_results(make, read, name, target=UNOPTIMIZED):
    """Results have the same bits; gradients are sums over rows, in which zeros are left out."""
    program, whole, rows = both(make, read, target)
    assert f"relax.{name}" in [each.operator for each in program.spared]
    for key, wanted in whole.items():
        if key in ("loss", "rows"):
            assert_same_bits(rows[key], np.asarray(wanted))
        else:
            np.testing.assert_allclose(rows[key], wanted, 1e-5, 1e-6)


def test_every_rule_has_a_line_here():
    assert {f"relax.{name}" for name in {**CASES, **CASES_OF_TOKENS}} == {*RULES}


@pytest.mark.parametrize("name", slow_except(KINDS.split(), CASES))
def test_rows_of_an_operator_are_those_of_all(name):
    reads = "some" if name in ("nn.relu", "matmul", "sparsetrain.dropout") else "the last"
    assert_same_results(CASES[name], READS[reads], name)


@pytest.mark.parametrize("read", slow_except(["the last"], READS))
def test_rows_that_are_read_in_any_way_are_those_of_all(read):
    assert_same_results(lambda a: op.add(a.emit(op.tanh(a.x)), a.x), READS[read], "tanh")


@pytest.mark.parametrize("read", slow_except(["last"], OF_TOKENS))
@pytest.mark.parametrize("name", CASES_OF_TOKENS)
def test_tokens_of_an_operator_are_those_of_all(name, read):
    assert_same_results(CASES_OF_TOKENS[name], OF_TOKENS[read], name)


QUICK = ("sasrec", "bert4rec", "hstu")


def results_of(name):
    """Loss, gradients and scores or vectors of a model, by name, and the operators spared."""
    trainer, batch = programs.trainer(name, target="cpu")
    inputs = loss_inputs(trainer, batch)
    loss, gradients = trainer.program(trainer.params, inputs)
    found, spared = {"loss": np.asarray(loss.numpy())}, [trainer.program.spared]
    for function in {*trainer.model.functions} - {"loss"}:
        program = trainer._program(function)
        if function == "logits":
            given = logits_inputs(trainer, batch)
        else:
            items = function == "items"
            given = {} if items else trainer.model.inputs(batch, function=function)
        found[function] = program(trainer.params, given).numpy()
        spared.append(program.spared)
    return found, gradients, spared


@pytest.mark.parametrize(
    "name", slow_except(QUICK, [n for n in programs.NAMES if n not in programs.FULL])
)
def test_results_of_a_model_are_those_of_all_rows(name):
    found, gradients, spared = results_of(name)
    with keep_dead_rows():
        wanted, others, none = results_of(name)
    assert any(spared) == (name in QUICK)
    assert not any(none)
    for key in wanted:
        assert_same_bits(found[key], wanted[key])
    for key, gradient in others.items():
        if isinstance(gradient, st.RowSparse):
            np.testing.assert_allclose(_dense(gradients[key]), _dense(gradient), 1e-4, 1e-6)
        else:
            np.testing.assert_allclose(gradients[key].numpy(), gradient.numpy(), 1e-4, 1e-6)


def _dense(gradient):
    return np.asarray(gradient.to_dense().numpy())


def test_a_row_without_tokens_keeps_gradients_finite():
    """Alone in a batch, where there is no token at all to compute."""
    program, *_ = both(CASES_OF_TOKENS["sparsetrain.ragged_attention"], OF_TOKENS["last"])
    floats, ids = arrays()
    floats |= {name: floats[name][:0] for name in FLOATS if FLOATS[name][0] == "N"}
    ids |= {"ends": np.zeros(B, "i8"), "numbers": ids["numbers"][:0]}
    (_, rows), gradients = program(floats, ids)
    assert not rows.numpy().any()
    assert all(np.isfinite(each.numpy()).all() for each in gradients.values())

# SPDX-License-Identifier: Apache-2.0
"""Updates in the gradient program: the bits of the optimizer's own, and the same checks before."""

import numpy as np
import pytest
from tvm import relax

import sparsetrain as st
from sparsetrain import optim, runtime
from sparsetrain.compiler import schedule
from sparsetrain.errors import DataError, NumericalError
from sparsetrain.optim.fused import layout as layouts
from sparsetrain.optim.fused.updates import fuse_updates
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.runtime.compiling import build_relax
from sparsetrain.runtime.host import host_target
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.sparse_tensor.strips import NOTES
from sparsetrain.training.fused_step import FusedSteps
from tests import small_dlrm
from tests.helpers import assert_same_bits
from tests.optim.formulas import OPTIMIZERS, Run
from tests.small_dlrm import assert_same_state

LR = 0.01 * optim.warmup(3) * optim.cosine(20)
# Every formula of the package and users' own, with and without what is done before the formula.
EACH = {
    **{name: make(0.1, update="sparse") for name, make in optim.OPTIMIZERS.items()},
    "adam, decayed": optim.adam(0.1, weight_decay=0.1),
    "adagrad, clipped": optim.adagrad(0.1, clip_value=0.5, update="sparse"),
    **{f"a user's {name}": OPTIMIZERS[name] for name in ("mixed", "count")},
}
SHAPES = [(5,), (3, 4), (1, 3000)]
TABLE = (6, 4)
INDICES = np.array([4, 1, 4, 6, 0], np.int32)  # duplicates and padding, unsorted
RNG = np.random.default_rng(0)
ON_A_CPU = pytest.mark.cpu("on CUDA updates are kernels of their own")


def doubled(shapes: dict[str, tuple[int, ...]], tables: dict[str, tuple[int, int]]):
    """A function of parameters and ids: a loss, and each parameter's double as its gradient.

    That of a table is row-sparse: twice the first rows of the table, for the rows that `ids` names.
    """
    builder = relax.BlockBuilder()
    ids = relax.Var("ids", relax.TensorType((len(INDICES),), "int32"))
    args = {
        name: relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (shapes | tables).items()
    }
    structure, leaves = {}, []
    with builder.function("f", [ids, *args.values()], attrs={"num_input": 1}):
        with builder.dataflow():
            loss = builder.emit(relax.op.sum(next(iter(args.values()))))
            for name, arg in args.items():
                gradient = builder.emit(relax.op.add(arg, arg))
                structure[name] = None
                if name in tables:
                    values = relax.op.strided_slice(gradient, [0], [0], [len(INDICES)])
                    rows = relax.op.reshape(ids, (len(INDICES),))
                    gradient = RowSparse(builder.emit(rows), builder.emit(values), TABLE[0])
                    structure[name] = gradient
                leaves += [gradient] if structure[name] is None else gradient.leaves
            out = builder.emit_output(relax.Tuple([loss, *leaves]))
        builder.emit_func_output(out)
    return builder.get(), structure


class Program:
    """One parameter for each case, each with an optimizer of its own, updated by one program."""

    def __init__(self):
        self.dense = {f"{name} {shape}": (EACH[name], shape) for name in EACH for shape in SHAPES}
        self.tables = {f"{name}, rows": (EACH[name], TABLE) for name in EACH}
        self.cases = self.dense | self.tables
        self.rules = [optimizer._rule() for optimizer, _ in self.cases.values()]
        module, structure = doubled(
            {key: shape for key, (_, shape) in self.dense.items()},
            {key: shape for key, (_, shape) in self.tables.items()},
        )
        numbers = {key: number for number, key in enumerate(self.cases)}
        self.layout = layouts.Layout(
            tuple(rule.spec for rule in self.rules),
            tuple(
                layouts.DenseUpdate(numbers[f"{name} {SHAPES[0]}"], names)
                for name in EACH
                for names in [tuple(f"{name} {shape}" for shape in SHAPES)]
            ),
            tuple(
                layouts.RowsUpdate(numbers[key], key, *part)
                for place, key in enumerate(self.tables)
                for part in (((0, 4), (4, TABLE[0])) if place < 2 else ((0, TABLE[0]),))
            ),
        )
        target = host_target()
        module = fuse_updates(module, "f", structure, self.layout)
        self.run = build_relax(module, target, schedule.pipeline(target))["f"]
        self.report = as_tensor(np.zeros(layouts.report_size(structure), np.int64))
        self.keys = as_tensor(np.zeros((len(self.tables), 2), np.int64))

    def runs(self, weights):
        return {key: Run(optimizer, weights[key]) for key, (optimizer, _) in self.cases.items()}

    def step_(self, runs, ids=INDICES, strips=1):
        numbers = np.zeros(layouts.numbers_shape(self.layout))
        for row, rule in zip(numbers, self.rules, strict=True):
            scalars = rule.scalars(rule.numbers(1), 1.0)
            row[: len(scalars)] = scalars
        params = [run.params["w"] for run in runs.values()]
        slots = [slot for run in runs.values() for slot in run.state["w"].values()]
        work = runtime.empty((strips, NOTES), "int32")
        self.run(as_tensor(ids), *params, *slots, as_tensor(numbers), self.keys, work, self.report)
        return as_numpy(self.report)


@pytest.fixture(scope="module")
def program():
    return Program()


@pytest.fixture
def weights(program):
    return {k: RNG.standard_normal(shape).astype("f4") for k, (_, shape) in program.cases.items()}


@pytest.mark.parametrize("strips", [1, 2, 3])
def test_updates_of_every_formula_have_the_bits_of_the_optimizers_own(program, weights, strips):
    inside, apart = program.runs(weights), program.runs(weights)
    assert not program.step_(inside, strips=strips).any()
    for key, run in apart.items():
        gradient = 2 * weights[key]
        if key in program.tables:
            gradient = RowSparse.from_numpy(INDICES, gradient[: len(INDICES)], TABLE[0])
        for name, array in run.apply(gradient).arrays().items():
            assert_same_bits(inside[key].arrays()[name], array)


@pytest.mark.parametrize("fault", ["dense", "rows", "loss", "outside"])
def test_nothing_is_written_if_anything_is_wrong(program, weights, fault):
    first, last = next(iter(program.dense)), [*program.tables][-1]
    ids = INDICES.copy()
    if fault == "outside":
        ids[1] = -3
    else:
        wrong = {"dense": [*program.dense][-1], "rows": last, "loss": first}[fault]
        weights[wrong].flat[0] = np.inf if fault == "rows" else np.nan
    runs = program.runs(weights)
    report = program.step_(runs, ids)
    assert report[0]
    assert report[1] == (fault == "loss")
    assert (report[-len(program.tables) :] == (fault == "outside")).all()
    for key, run in runs.items():
        assert_same_bits(run.arrays()["w"], weights[key])


# What a step of a model can be; each compiles a program.
CASES = {
    "rowwise_adagrad, bags": (optim.rowwise_adagrad(LR, update="sparse"), "weighted"),
    "adam, bfloat16 tables of several rules": (
        optim.adam(
            LR,
            weight_decay=1e-2,
            clip_value=0.01,
            groups=[
                optim.ParamGroup("*.bias", scale=0.5, weight_decay=0.0),
                optim.ParamGroup("embeddings.C2.weight", lr=0.1),
            ],
        ),
        "bfloat16",
    ),
}


def pair(optimizer, kind: str = "single", **options) -> tuple[st.Trainer, st.Trainer]:
    """The same trainer apart and fused."""
    apart, inside = (
        small_dlrm.share_programs(
            st.Trainer(small_dlrm.model(kind), optimizer, fused=fused, **options), kind
        )
        for fused in (False, True)
    )
    return apart, inside


@ON_A_CPU
@pytest.mark.parametrize("name", CASES)
def test_fused_steps_give_the_bits_of_steps_apart(name):
    apart, inside = pair(*CASES[name])
    for number, size in enumerate([16, 7, 1, 16]):
        batch = small_dlrm.batch(size, number, CASES[name][1])
        assert float(apart.step(batch)) == float(inside.step(batch))
        assert apart.applied == inside.applied
    assert inside._way._steps is not None
    assert_same_state(inside.state_dict(), apart.state_dict())


# Rules whose steps need something between gradients and updates.
NOT_FUSED = {
    "norm": (optim.sgd(0.1, clip_norm=1.0), {}),
    "exact": (optim.adam(0.1, mode="exact"), {}),
    "every row": (optim.adam(0.1, mode="dense"), {}),
    "parts": (optim.sgd(0.1), {"accumulate": 2}),
}


@ON_A_CPU
@pytest.mark.parametrize("name", NOT_FUSED)
def test_rules_that_cannot_be_fused_are_followed_apart(name):
    optimizer, options = NOT_FUSED[name]
    apart, inside = pair(optimizer, **options)
    for trainer in (apart, inside):
        trainer.step(small_dlrm.batch(16))
    assert inside._way._steps is None
    assert_same_state(inside.state_dict(), apart.state_dict())


def huge() -> st.data.Batch:
    """A batch whose loss is not finite."""
    plain = small_dlrm.batch(16)
    return st.data.Batch(np.sign(plain.dense) * np.float32(3e38), plain.ids, plain.labels)


def test_what_is_not_finite_stops_before_any_update_or_skips_the_step():
    _, trainer = pair(optim.adam(0.1))
    trainer.step(small_dlrm.batch(16))
    before = trainer.state_dict()
    with pytest.raises(NumericalError, match="the loss is .* in step 2: nothing was updated"):
        trainer.step(huge())
    assert_same_state(trainer.state_dict(), before)
    trainer.optimizer = optim.adam(0.1, on_nonfinite="skip")
    trainer.step(huge())
    assert_same_state(trainer.state_dict(), before)
    assert trainer.state.skipped == 1 and "loss" in trainer.applied.skipped
    trainer.step(small_dlrm.batch(16))
    assert trainer.state.step == 2


@ON_A_CPU
def test_rows_outside_their_table_are_refused_in_words():
    _, trainer = pair(optim.adam(0.1))
    trainer.step(small_dlrm.batch(16))
    steps = trainer._way._steps
    as_numpy(steps._report, writable=True)[-1] = 3
    with pytest.raises(DataError, match=r"3 row indices lie outside the 77 rows of 'embeddings\."):
        steps._problem(as_tensor(np.float32(0)))


def test_a_saved_trainer_keeps_whether_it_is_fused(tmp_path):
    apart, _ = pair(optim.sgd(0.1))
    apart.save(tmp_path / "run")
    assert st.load(tmp_path / "run").fused is False


def test_another_optimizer_of_the_same_slots_takes_over():
    apart, inside = pair(optim.adagrad(0.1, update="sparse"))
    others = (optim.adagrad(0.2, update="sparse"), optim.adagrad(0.2, clip_norm=0.01))
    for optimizer in others:
        for trainer in (apart, inside):
            trainer.optimizer = optimizer
            trainer.step(small_dlrm.batch(16))
    assert_same_state(inside.state_dict(), apart.state_dict())


def test_parameters_that_were_replaced_are_the_ones_that_are_updated():
    apart, inside = pair(optim.adagrad(0.1, update="sparse"))
    for trainer in (apart, inside):
        trainer.step(small_dlrm.batch(16))
        halves = {name: as_tensor(as_numpy(tensor) / 2) for name, tensor in trainer.params.items()}
        trainer.params.update(trainer.program.place(halves))
        trainer.step(small_dlrm.batch(16))
    assert_same_state(inside.state_dict(), apart.state_dict())


@ON_A_CPU
def test_an_interrupt_before_the_program_runs_writes_nothing(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    _, trainer = pair(optim.adam(0.1))
    before = trainer.state_dict()
    monkeypatch.setattr(FusedSteps, "_set_numbers_", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.step(small_dlrm.batch(16))
    assert_same_state(trainer.state_dict(), before)

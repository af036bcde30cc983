# SPDX-License-Identifier: Apache-2.0
"""Dense updates in the gradient program: the bits of those apart, and the same checks before."""

import numpy as np
import pytest
from tvm import relax

import sparsetrain as st
from sparsetrain import optim, runtime, schedule
from sparsetrain.errors import ConfigError, NumericalError
from sparsetrain.optim.inlined import Update, inline_updates, width
from sparsetrain.optim.step import Step
from sparsetrain.runtime import as_tensor
from tests import small_dlrm
from tests.helpers import assert_same_bits
from tests.optim.formulas import OPTIMIZERS, Run
from tests.small_dlrm import assert_same_state

LR = 0.01 * optim.warmup(3) * optim.cosine(20)
# Every formula of the package and users' own, with and without what is done before the formula.
EACH = {
    **{name: make(0.1) for name, make in optim.OPTIMIZERS.items()},
    "adam, decayed": optim.adam(0.1, weight_decay=0.1),
    "momentum, decoupled": optim.momentum(0.1, weight_decay=0.1, decoupled=True),
    "adagrad, clipped": optim.adagrad(0.1, clip_value=0.5),
    **{f"a user's {name}": optimizer for name, optimizer in OPTIMIZERS.items()},
}
SHAPES = [(), (5,), (3, 4), (1, 3000)]


def gradient_function(shapes: dict[str, tuple[int, ...]]):
    """A function whose results are a loss and, as a gradient of each argument, its double."""
    builder = relax.BlockBuilder()
    args = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in shapes.items()]
    with builder.function("f", args):
        with builder.dataflow():
            doubles = [builder.emit(relax.op.add(arg, arg)) for arg in args]
            loss = builder.emit(relax.op.sum(args[0]))
            out = builder.emit_output(relax.Tuple([loss, *doubles]))
        builder.emit_func_output(out)
    return builder.get()


def test_the_updates_of_every_formula_have_the_bits_of_the_dense_kernel():
    rng = np.random.default_rng(0)
    cases = {f"{name} {shape}": (EACH[name], shape) for name in EACH for shape in SHAPES}
    weights = {key: rng.standard_normal(shape).astype("f4") for key, (_, shape) in cases.items()}
    recipes = {key: optimizer._rule().recipe for key, (optimizer, _) in cases.items()}
    updates = [Update(key, 1 + place, recipes[key]) for place, key in enumerate(cases)]
    module = gradient_function({key: shape for key, (_, shape) in cases.items()})
    target = runtime.host_target()
    machine = runtime.build_relax(
        inline_updates(module, "f", updates), target, schedule.pipeline(target)
    )
    numbers = np.zeros((len(updates), width(updates)))
    for row, update in zip(numbers, updates, strict=True):
        rule = cases[update.name][0]._rule()
        scalars = rule.numbers(1) + ((rule.clip_value,) if rule.clip_value else ())
        row[0], row[1 : 1 + len(scalars)] = update.height(cases[update.name][1]), scalars
    inlined, apart = (
        {key: Run(optimizer, weights[key]) for key, (optimizer, _) in cases.items()}
        for _ in range(2)
    )
    params = [run.params["w"] for run in inlined.values()]
    slots = [slot for run in inlined.values() for slot in run.state["w"].values()]
    nothing, all_of_it = as_tensor(np.zeros_like(numbers)), as_tensor(numbers)
    machine["f"](*params, *slots, lambda *_: nothing)
    for key, run in inlined.items():
        assert_same_bits(run.arrays()["w"], weights[key])
    machine["f"](*params, *slots, lambda *_: all_of_it)
    for key, run in apart.items():
        for name, array in run.apply(2 * weights[key]).arrays().items():
            assert_same_bits(inlined[key].arrays()[name], array)


# What a step of a model can be; each compiles a program.
CASES = {
    "rowwise_adagrad, bags": (optim.rowwise_adagrad(LR), {"kind": "weighted"}),
    "adam, all options, in parts": (
        optim.adam(
            LR,
            mode="exact",
            weight_decay=1e-2,
            clip_norm=0.1,
            clip_value=0.01,
            groups=[
                optim.Group("*.bias", scale=0.5, weight_decay=0.0),
                optim.Group("embeddings.C2.weight", lr=0.1, mode="dense"),
            ],
        ),
        {"accumulate": 3},
    ),
}


def pair(optimizer, accumulate: int = 1, kind: str = "single") -> list[st.Trainer]:
    trainers = [
        small_dlrm.share_programs(
            st.Trainer(
                small_dlrm.model(kind), optimizer, accumulate=accumulate, dense_update=dense_update
            ),
            kind,
        )
        for dense_update in ("apart", "inlined")
    ]
    return trainers


@pytest.mark.parametrize("name", CASES)
def test_inlined_updates_give_the_bits_of_those_apart(name):
    optimizer, options = CASES[name]
    apart, inlined = pair(optimizer, **options)
    for number, size in enumerate([16, 7, 1, 16, 16]):
        batch = small_dlrm.batch(size, number, options.get("kind", "single"))
        assert float(apart.step(batch)) == float(inlined.step(batch))
        assert apart.applied == inlined.applied
    assert_same_state(inlined.state_dict(), apart.state_dict())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_is_not_finite_stops_before_any_update_or_skips_the_step(accumulate):
    plain = small_dlrm.batch(16)
    huge = st.data.Batch(np.sign(plain.dense) * np.float32(3e38), plain.ids, plain.labels)
    _, stopping = pair(optim.adam(0.1), accumulate)
    stopping.step(plain)
    before = stopping.state_dict()
    with pytest.raises(NumericalError, match="in step 2: nothing was updated"):
        stopping.step(huge)
    assert_same_state(stopping.state_dict(), before)
    _, skipping = pair(optim.adam(0.1, on_nonfinite="skip"), accumulate)
    before = skipping.state_dict()
    skipping.step(huge)
    assert_same_state(skipping.state_dict(), before)
    assert skipping.state.skipped == 1 and "loss" in skipping.applied.skipped
    skipping.step(plain)
    assert skipping.state.step == 1


def test_a_saved_trainer_keeps_its_way_of_updating(tmp_path):
    _, inlined = pair(optim.sgd(0.1))
    inlined.save(tmp_path / "run")
    assert st.load(tmp_path / "run").dense_update == "inlined"


def test_another_optimizer_of_the_same_slots_takes_over():
    apart, inlined = pair(optim.adagrad(0.1))
    for optimizer in (optim.adagrad(0.1), optim.adagrad(0.2, clip_value=0.01)):
        for trainer in (apart, inlined):
            trainer.optimizer = optimizer
            trainer.step(small_dlrm.batch(16))
    assert_same_state(inlined.state_dict(), apart.state_dict())


def test_a_word_that_means_nothing_is_refused():
    with pytest.raises(ConfigError, match="dense_update is 'apart' or 'inlined', not 'fused'"):
        st.Trainer(small_dlrm.model(), optim.sgd(0.1), dense_update="fused")


def test_an_interrupt_while_the_program_waits_for_its_numbers_writes_nothing(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    _, inlined = pair(optim.adagrad(0.1))
    before = inlined.state_dict()
    monkeypatch.setattr(Step, "scalars", interrupted)
    with pytest.raises(KeyboardInterrupt):
        inlined.step(small_dlrm.batch(16))
    assert_same_state(inlined.state_dict(), before)

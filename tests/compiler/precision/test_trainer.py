# SPDX-License-Identifier: Apache-2.0
"""Training in bfloat16: same model, same files, float32 parameters; and who is refused."""

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.compiler.precision import lacks
from sparsetrain.errors import CheckpointError, ConfigError
from sparsetrain.runtime.targets import resolve_target
from tests.helpers import slow_except

CROSS = {"interaction": "cross", "cross_layers": 2, "cross_rank": 16}
# What trains in bfloat16 -> what of the model is not as usual.
MODELS = {
    "dot": {},
    "cross": CROSS,
    "cross, tables in bfloat16": {**CROSS, "table_dtype": "bfloat16"},
    "cross, tables in float16": {**CROSS, "table_dtype": "float16"},
}


def needs_bfloat16(kind="dot"):
    """Skips where the target that "auto" means has no products of bfloat16."""
    lacking = lacks("bfloat16", resolve_target("auto"))
    return pytest.mark.skipif(lacking is not None, reason=str(lacking))


QUICK = ("dot", "cross, tables in bfloat16")
in_models = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[needs_bfloat16(kind), *[pytest.mark.slow] * (kind not in QUICK)])
        for kind in MODELS
    ],
)


def trainer(optimizer=None, kind="dot", **options):
    model = st.models.DLRM(
        rows=[50, 20], dim=8, bottom=(32,), top=(48, 16), num_dense=13, **MODELS[kind]
    )
    return st.Trainer(model, optimizer=optimizer or st.optim.adagrad(0.05), **options)


def batches(count=12, size=96):
    random = np.random.default_rng(0)
    for _ in range(count):
        dense = random.standard_normal((size, 13), dtype=np.float32)
        labels = (dense[:, 0] + dense[:, 1] > 0).astype(np.float32)
        yield st.data.Batch(dense=dense, ids=random.integers(0, 20, (size, 2)), labels=labels)


def gradients(model, batch):
    """Loss and all gradients in one vector, float64; nothing is updated."""
    loss, by_name = model.program(model.params, model.model.inputs(batch))
    parts = [getattr(g, "values", g).numpy().ravel() for g in by_name.values()]
    return float(loss.numpy()), np.concatenate(parts).astype(np.float64)


def losses(model):
    return [float(model.step(batch)) for batch in batches()]


def assert_same_bits(left, right):
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name], err_msg=name)


@needs_bfloat16()
def test_matrices_of_cross_layers_are_rounded_too():
    text = trainer(kind="cross", precision="bf16").program.module.script()
    weights = [f"interaction_layers_{n}_{part}_weight" for n in (0, 1) for part in "vw"]
    assert [name for name in weights if f"R.astype({name}" not in text] == []


@needs_bfloat16()
@pytest.mark.parametrize("kind", slow_except(["dot"], ["dot", "cross"]))
def test_losses_leave_those_of_float32_no_further_than_rounding_explains(kind):
    """A gradient g off by r |g| changes what a step h g does to the loss by at most r h |g|^2.

    That is to first order, so twice the sum over all steps is allowed, beside what rounding does to
    the loss of a batch at the same weights. A bias of the products would add up to more.
    """
    # The norm is asked for, not clipped. Not Adagrad: its first steps are signs of gradients.
    rule = st.optim.sgd(0.1, clip_norm=1e9)
    half, single = (trainer(rule, kind, precision=p) for p in ("bf16", "float32"))
    (near, near_gradients), (exact, exact_gradients) = (
        zip(*(gradients(model, batch) for batch in batches()), strict=True)
        for model in (half, single)
    )
    forward = np.max(np.abs(np.subtract(near, exact)))
    pairs = zip(near_gradients, exact_gradients, strict=True)
    r = max(np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs)
    drift = 0.0
    for batch in batches():
        difference = abs(float(half.step(batch)) - float(single.step(batch)))
        assert difference <= forward + 2 * drift
        drift += r * 0.1 * single.applied.norm**2
    assert r < 0.1  # or the bound would say nothing
    assert {array.dtype for array in half.state_dict().values()} == {np.dtype(np.float32)}


@in_models
def test_results_have_the_same_bits_for_any_number_of_threads(kind):
    before = st.runtime.num_threads()
    states = []
    try:
        for threads in range(1, before + 1):
            st.set_num_threads(threads)
            half = trainer(kind=kind, precision="bf16")
            losses(half)
            states.append(half.state_dict())
    finally:
        st.set_num_threads(before)
    for state in states:
        assert_same_bits(states[0], state)


@in_models
def test_a_saved_trainer_goes_on_in_its_precision(tmp_path, kind):
    half = trainer(kind=kind, precision="bf16")
    losses(half)
    half.save(tmp_path / "run")
    loaded = st.load(tmp_path / "run")
    assert loaded.precision == "bf16"
    assert losses(loaded) == losses(half)
    assert_same_bits(loaded.state_dict(), half.state_dict())
    np.testing.assert_array_equal(loaded.predict(next(batches())), half.predict(next(batches())))
    assert st.load(tmp_path / "run", precision="float32").precision == "float32"


def test_a_machine_without_the_instructions_is_told_so_at_the_start():
    with pytest.raises(ConfigError, match="no AVX512_BF16 instructions; use precision='float32'"):
        trainer(precision="bf16", target="llvm")


@needs_bfloat16()
def test_what_was_saved_elsewhere_names_the_way_out(tmp_path):
    trainer(precision="bf16").save(tmp_path / "run")
    with pytest.raises(CheckpointError, match="use precision='float32'"):
        st.load(tmp_path / "run", target="llvm")


def test_a_precision_that_is_asked_for_and_lacking_is_no_fault_of_the_folder(tmp_path):
    made = trainer()
    made.precision = "bf16"  # as a machine with the instructions would have saved it
    made.save(tmp_path / "run")
    with pytest.raises(CheckpointError, match="run: precision: .* use precision='float32'"):
        st.load(tmp_path / "run", target="llvm")
    assert st.load(tmp_path / "run", target="llvm", precision="float32").precision == "float32"
    with pytest.raises(ConfigError, match="^precision: the target llvm has no AVX512_BF16"):
        st.load_predictor(tmp_path / "run", target="llvm", precision="bf16")


def test_an_unknown_precision_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="'float32' or 'bf16' or 'fp16', not 'fp8'"):
        trainer(precision="fp8")


def test_a_cpu_is_told_that_it_has_no_products_of_float16():
    with pytest.raises(ConfigError, match="no llvm target computes products of float16"):
        trainer(precision="fp16", target="cpu")

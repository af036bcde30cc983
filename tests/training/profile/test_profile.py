# SPDX-License-Identifier: Apache-2.0
"""A profile names every kernel of a step, counts what it does, and changes no result."""

import json

import pytest

import sparsetrain as st
from sparsetrain.errors import ConfigError, NumericalError
from sparsetrain.training.profile import recorder
from tests import small_dlrm
from tests.golden import programs
from tests.helpers import slow_except

OF_A_CPU = pytest.mark.cpu("a device has other kernels for it")


@pytest.fixture(scope="module")
def profile():
    trainer = small_dlrm.trainer("single", st.optim.adagrad(0.05, update="sparse"))
    return trainer.profile(small_dlrm.batch(37), steps=4)


@pytest.mark.parametrize(
    "name",
    [
        "lookup of rows",
        "interaction",
        "loss",
        "update of touched rows",
        "37 x 16 x 13: x Wᵀ, add, relu",
        pytest.param("sort of rows", marks=OF_A_CPU),
        pytest.param("16 x 13 x 37: xᵀ y", marks=OF_A_CPU),
    ],
)
def test_a_kernel_is_named_in_words(name, profile):
    assert name in [kernel.name for kernel in profile.kernels]


def test_operations_of_a_product_and_bytes_of_rows_are_counted(profile):
    kernels = {kernel.name: kernel for kernel in profile.kernels}
    product = kernels["37 x 16 x 13: x Wᵀ, add, relu"]
    assert product.flops == 2 * 37 * 16 * 13
    assert product.gflops == pytest.approx(product.flops / product.seconds / 1e9)
    lookups = 37 * len(small_dlrm.ROWS)
    # Ids, the rows that are read, the rows that are written: not the table.
    assert kernels["lookup of rows"].bytes == lookups * (4 + 8 * 4 + 8 * 4)


@pytest.mark.parametrize(
    ("shapes", "size"),
    [
        ([(9, 5), (7, 5), (7,), (9, 7)], (9, 7, 5)),  # x Wᵀ, add
        ([(9, 13), (9, 7), (7,), (7, 13)], (7, 13, 9)),  # what is written may be transposed
        ([(9, 7), (9, 7), (9, 5), (5, 7), (9, 7)], (9, 7, 5)),  # x y + z W
        ([(7, 7), (7, 7), (7, 5), (5, 7), (7, 7)], (7, 7, 5)),  # the same of as many rows
        ([(9, 1, 5), (7, 5), (9, 7)], (9, 7, 5)),
    ],
)
def test_the_operands_of_a_product_are_found_among_what_is_fused_with_it(shapes, size):
    assert recorder._product_size(shapes) == size


def test_a_profile_prints_as_a_table_and_survives_json(profile):
    title, head, *lines = str(profile).splitlines()
    assert "a step of 37 rows" in title and "medians of 4 steps" in title
    assert head.split() == ["kernel", "calls", "ms", "share", "GFLOP/s", "GB/s"]
    assert len(lines) == len(profile.kernels) + 1 and lines[-1].startswith("outside kernels")
    stored = json.loads(json.dumps(profile.to_dict()))
    assert st.StepProfile.from_dict(stored) == profile
    del stored["device"]  # as of an earlier release
    assert st.StepProfile.from_dict(stored).kernels == profile.kernels


KEPT = {  # what steps change besides parameters and slots of plain updates
    "adagrad": {},
    "rows that lag, a schedule and averages": {
        "optimizer": lambda: st.optim.adam(
            0.01 * st.optim.warmup(5), average=st.optim.ema(0.9), mode="exact"
        )
    },
    "batch norm, dropout, a norm, a scaled loss, rounded tables": {
        "model": {"batch_norm": True, "dropout": 0.5, "table_dtype": "bfloat16"},
        "optimizer": lambda: st.optim.sgd(0.1, clip_norm=0.1),
        "loss_scale": st.precision.LossScale(1e37, every=2, most=1e37),
    },
}


@pytest.mark.parametrize("name", slow_except([*KEPT][:2], KEPT))
def test_a_profile_leaves_the_trainer_as_it_was(name):
    options = dict(KEPT[name])
    model = {**options.pop("model", {}), "rows": small_dlrm.ROWS, "bottom": (16,), "top": (16,)}
    rule = options.pop("optimizer", lambda: st.optim.adagrad(0.05))
    trainer, plain = (
        st.Trainer(st.models.DLRM(dim=8, num_dense=13, **model), rule(), target="cpu", **options)
        for _ in range(2)
    )
    for each in (trainer, plain):
        for seed in range(3):
            each.step(small_dlrm.batch(9, seed=seed))
    before, applied = trainer.state_dict(), trainer.applied
    trainer.profile(small_dlrm.batch(7), steps=4)
    small_dlrm.assert_same_state(trainer.state_dict(), before)
    assert trainer._counts() == plain._counts()
    assert (trainer.applied, trainer.state.step, trainer.step_hook) == (applied, 3, None)
    for seed in range(3, 6):
        batch = small_dlrm.batch(9, seed=seed)
        assert float(trainer.step(batch)) == float(plain.step(batch))
    small_dlrm.assert_same_state(trainer.state_dict(), plain.state_dict())


def test_a_profile_that_fails_leaves_the_trainer_as_it_was():
    trainer = small_dlrm.trainer("single", st.optim.sgd(1e30))
    before = trainer.state_dict()
    with pytest.raises(NumericalError):
        trainer.profile(small_dlrm.batch(37))
    small_dlrm.assert_same_state(trainer.state_dict(), before)
    assert trainer.steps == 0


def test_recorded_steps_train_like_any_other():
    batches = [small_dlrm.batch(37, seed=seed) for seed in range(12)]
    plain, recorded = small_dlrm.trainer("single"), small_dlrm.trainer("single")
    plain.fit(batches, progress=None)
    history = recorded.fit(batches, progress=None, profile=True)
    assert history["profile"].rows == 37 and history["profile"].steps == 7
    small_dlrm.assert_same_state(recorded.state_dict(), plain.state_dict())


def test_a_training_too_short_to_profile_has_none():
    history = small_dlrm.trainer("single").fit([small_dlrm.batch(37)], progress=None, profile=True)
    assert history["profile"] is None


@OF_A_CPU
def test_updates_apart_are_profiled_too(profile):
    trainer = small_dlrm.trainer("single", st.optim.adagrad(0.05, clip_norm=1.0))
    apart = trainer.profile(small_dlrm.batch(37), steps=2)
    names = {kernel.name for kernel in profile.kernels}
    norm = {"sum of squares", "sum of equal rows", "sort of rows"}
    assert {kernel.name for kernel in apart.kernels} == names | norm


def test_fewer_than_two_steps_are_refused():
    with pytest.raises(ConfigError, match="steps is 1; it must be 2 or more"):
        small_dlrm.trainer("single").profile(small_dlrm.batch(37), steps=1)


def test_operations_on_rows_that_nothing_reads_are_counted():
    trainer, batch = programs.trainer("bert4rec", target="cpu")
    found = trainer.profile(batch, steps=2)
    of_a_row = 4 * 2 * 8 * 8  # queries, output and feed-forward layers of the last block
    assert found.spared > 0 and found.spared % of_a_row == 0
    assert "dead rows" in str(found) and "dead rows" in found._repr_html_()
    assert st.StepProfile.from_dict(found.to_dict()) == found

# SPDX-License-Identifier: Apache-2.0
"""Averages of weights follow their recursion, by rows and densely; the model scores by them."""

from itertools import product

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain import optim
from sparsetrain.errors import ConfigError
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse
from tests import small_dlrm
from tests.helpers import assert_same_bits, slow_except
from tests.optim.formulas import SQUARE, Run
from tests.small_dlrm import assert_same_state

ROWS, WIDTH, STEPS = 60, 4, 20
MAKERS = {
    "sgd": optim.sgd,
    "adam": optim.adam,
    "adamw": lambda lr, **o: optim.adamw(lr, weight_decay=0.1, **o),
    "rowwise_adagrad": optim.rowwise_adagrad,
    "a formula with slots in its means": lambda lr, **o: optim.Optimizer(
        optim.Formula(
            "own",
            lambda w, g, slots, h: (w - h.lr * g + 0 * h.mean_square, (slots[0] + g,)),
            (optim.Slot("total"),),
            (SQUARE, optim.RowMean("of_total", lambda w, g, slots, h: slots[0] * g)),
        ),
        {"lr": lr},
        **o,
    ),
}
AVERAGES = {"ema": optim.ema(0.9), "swa": optim.swa(start=5, every=3)}


def recursion(average: optim.average.Average, weights: list[np.ndarray]) -> np.ndarray:
    """The average after all steps, from the weights before the first and after each."""
    if average.decay is None:
        return np.mean(weights[average.start :: average.every], axis=0)
    mean = weights[0].astype("f8")
    for weight in weights[1:]:
        mean = average.decay * mean + (1 - average.decay) * weight
    return mean


QUICK = [("adam", "ema"), ("rowwise_adagrad", "swa"), ("a formula with slots in its means", "ema")]


@pytest.mark.parametrize(("name", "kind"), slow_except(QUICK, product(MAKERS, AVERAGES)))
def test_an_average_is_that_of_the_weights_of_all_steps(name, kind):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((ROWS, WIDTH)).astype("f4")
    ids = rng.integers(0, ROWS // 2, (STEPS, 6))  # some rows are never named
    values = rng.standard_normal((STEPS, 6, WIDTH)).astype("f4")
    options = {"mode": "exact", "average": AVERAGES[kind]}
    runs = {u: Run(MAKERS[name](0.05, **options, update=u), weight) for u in ("sparse", "dense")}
    weights = [weight]
    for step in range(STEPS):
        for run in runs.values():
            run.optimizer.catch_up_(run.params, {"w": ids[step]}, run.state)
            run.apply(RowSparse.from_numpy(ids[step], values[step], ROWS))
        weights.append(runs["dense"].arrays()["w"])
    for run in runs.values():
        run.optimizer.flush_(run.params, run.state)
    found = {u: as_numpy(optim.averages(run.params, run.state)["w"]) for u, run in runs.items()}
    expected = recursion(AVERAGES[kind], weights)
    np.testing.assert_allclose(found["dense"], expected, rtol=2e-6, atol=2e-6)
    assert_same_bits(found["sparse"], found["dense"])
    assert np.abs(found["dense"] - weights[-1]).max() > 0.01


def test_one_multiplication_a_row_averages_what_no_gradient_of_0_moves():
    weight = np.ones((ROWS, WIDTH), "f4")
    options = {"mode": "exact", "average": 0.9, "update": "sparse"}
    whole, short = (
        Run(optim.adagrad(0.05, **options, max_replayed_steps=limit), weight) for limit in (None, 1)
    )
    replayed = {}
    for limit, run in {"whole": whole, "short": short}.items():
        for step in range(STEPS):
            ids = np.array([0, 1 + step])
            run.optimizer.catch_up_(run.params, {"w": ids}, run.state)
            run.apply(RowSparse.from_numpy(ids, np.ones((2, WIDTH), "f4"), ROWS))
        replayed[limit] = run.optimizer.flush_(run.params, run.state)
    found, expected = short.arrays(), whole.arrays()
    assert_same_bits(found["w"], expected["w"])
    np.testing.assert_allclose(found["average"], expected["average"], rtol=1e-5)
    assert replayed == {"whole": sum(range(STEPS)), "short": STEPS - 1}


@pytest.mark.parametrize("kind", slow_except(["ema"], ["ema", "swa"]))
def test_a_model_scores_by_its_average_and_resumes_with_it_to_the_same_bits(kind, tmp_path):
    average = {"ema": 0.9, "swa": optim.swa(4, 2)}[kind]
    optimizer = optim.adam(0.02, mode="exact", average=average)
    batches = [small_dlrm.batch(32, seed) for seed in range(6)]
    whole, part = (small_dlrm.trainer(optimizer=optimizer) for _ in range(2))
    whole.fit(batches, epochs=2, progress=None)
    part.fit(batches, epochs=1, run=tmp_path, progress=None)
    resumed = small_dlrm.share_programs(st.load(tmp_path))
    assert resumed.optimizer.average == optimizer.average
    resumed.fit(batches, epochs=2, run=tmp_path, resume=True, progress=None)
    assert_same_state(resumed.state_dict(), whole.state_dict())
    arrays = whole.state_dict()
    plain = small_dlrm.trainer(optimizer=optim.sgd(0.1))
    mean = {n: arrays[n] + arrays[f"{n}:average"] for n in plain.state_dict()}
    plain.load_state_dict(mean)
    np.testing.assert_array_equal(whole.predict(batches[0]), plain.predict(batches[0]))
    assert whole.evaluate(batches) == plain.evaluate(batches)
    # Training goes on from the weights.
    assert float(whole.step(batches[0])) != float(plain.step(batches[0]))


WRONG = {
    "lazy rows": (lambda: optim.adagrad(0.1, average=0.9), "needs mode 'exact' or 'dense'"),
    "a lazy group": (
        lambda: optim.adam(
            0.1, mode="exact", average=0.9, groups=[optim.ParamGroup("w", mode="lazy")]
        ).init({"w": as_tensor(np.ones((2, 3), "f4"))}),
        "needs mode 'exact' or 'dense'",
    ),
    "no decay": (lambda: optim.ema(1.0), "decay is 1.0; it must be from 0 to below 1"),
    "no start": (lambda: optim.swa(0), "swa: start is 0"),
    "halves": (
        lambda: optim.adam(0.1, mode="exact", average=0.9).init(
            {"w": as_tensor(np.ones((2, 3), "f4"), "bfloat16")}
        ),
        "average needs float32 parameters, but 'w' is",
    ),
    "a slot of this name": (
        lambda: optim.Optimizer(
            optim.Formula("own", lambda w, g, slots, h: (w, slots), (optim.Slot("average"),)),
            {},
            mode="dense",
            average=0.5,
        ),
        "rename its slot 'average'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_average_that_cannot_be_kept_is_refused(name):
    make, text = WRONG[name]
    with pytest.raises(ConfigError, match=text):
        make()

# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from tvm.relax import op
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain import ad
from sparsetrain.errors import ConfigError
from sparsetrain.models import losses
from tests.helpers import slow_except

N, D, V, K = 7, 5, 37, 4
RNG = np.random.default_rng(0)


def softmax_loss(scores, items):
    return np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(items)), items]


def in_batch(q, x, log_q, ids):
    scores = q @ x.T - log_q
    scores[(ids[:, None] == ids) & ~np.eye(N, dtype=bool)] = -1e9
    return softmax_loss(scores, np.arange(N))


def in_batch_of_items(q, x, ids):
    scores = q @ x.T
    other = (ids[:, None] == ids) | (ids < 2)
    scores[other & ~np.eye(N, dtype=bool)] = -1e9
    return softmax_loss(scores, np.arange(N))


def sampled(p, n, log_p, log_n):
    return softmax_loss(np.concatenate([(p - log_p)[:, None], n - log_n], 1), np.zeros(N, int))


def contrastive(p, n):
    return 1 - p + 150 * np.maximum(n - 0.4, 0).mean(axis=1)


def warp(p, n, items=50):
    """By the letter of the paper: try one negative after another until one violates the margin."""
    losses = np.zeros(len(p))
    for row, score in enumerate(p):
        for tried, negative in enumerate(n[row], 1):
            if 1 - score + negative > 0:
                rank = (items - 1) // tried
                losses[row] = sum(1 / r for r in range(1, rank + 1)) * (1 - score + negative)
                break
    return losses


# Name -> the loss, the same in NumPy, and its arguments: shapes of floats, or ids.
FLOATS = {"x": ["N", D], "q": ["N", D], "table": [V, D], "a": ["N"], "b": ["N"], "k": ["N", K]}
FLOATS |= {"l": ["N", K]}
CASES = {
    "full softmax": (losses.full_softmax, lambda x, t, y: softmax_loss(x @ t.T, y), "x table ids"),
    "tiled softmax": (
        losses.tiled_softmax,
        lambda x, t, y: softmax_loss(x @ t.T, y),
        "x table ids",
    ),
    "softmax": (losses.softmax_cross_entropy, softmax_loss, "x classes"),
    "in-batch softmax": (losses.in_batch_softmax, in_batch, "q x a ids"),
    "in-batch softmax of items": (
        lambda q, x, ids: losses.in_batch_softmax(q, x, ids=ids, items_from=2),
        in_batch_of_items,
        "q x ids",
    ),
    "sampled softmax": (losses.sampled_softmax, sampled, "a k b l"),
    "cosine contrastive": (losses.cosine_contrastive, contrastive, "a k"),
    "warp": (lambda a, k: losses.warp(a, k, 50), warp, "a k"),
    "decay of rows": (
        lambda q, x: nn.op.reshape(losses.squares_of_rows(q, x), (1,)),
        lambda q, x: np.array([(q**2).sum() + (x**2).sum()]) / (2 * N),
        "q x",
    ),
    "bpr": (losses.bpr, lambda a, b: np.log1p(np.exp(b - a)), "a b"),
    "squared error": (losses.squared_error, lambda a, b: (a - b) ** 2, "a b"),
    "cross-entropy": (
        lambda a: losses.binary_cross_entropy(a, 1.0),
        lambda a: np.log1p(np.exp(-a)),
        "a",
    ),
}


QUICK = (
    *("full softmax", "tiled softmax", "in-batch softmax of items"),
    *("bpr", "cosine contrastive", "warp"),
)


@pytest.mark.parametrize("name", slow_except(QUICK, CASES))
def test_a_loss_and_its_gradient_are_those_of_float64(name):
    function, reference, arguments = CASES[name]
    names = arguments.split()
    values = {n: RNG.normal(size=[N if e == "N" else e for e in FLOATS[n]]) for n in FLOATS}
    values |= {"ids": RNG.integers(0, 4, N), "classes": RNG.integers(0, D, N)}

    class Module(nn.Module):
        def loss(self, *given):
            each = function(*given)
            cosine = nn.wrap_nested(op.cos(each._expr), "cosine")
            return nn.wrap_nested(op.sum((each * cosine)._expr), "loss")

    module = Module()
    specs = [
        nn.spec.Tensor(FLOATS[n], "float64") if n in FLOATS else nn.spec.Tensor(["N"], "int64")
        for n in names
    ]
    method = nn.spec.MethodSpec(module.loss, names, specs, "plain", "plain")
    exported, _ = module.export_tvm({"loss": method})
    wrt = [n for n in names if n in FLOATS]
    program = st.value_and_grad(exported, "loss", wrt, densify=wrt, target="cpu")
    given = {n: values[n] for n in names}
    wanted = reference(*given.values())
    loss, _ = program(given, {})
    assert float(loss.numpy()) == pytest.approx((wanted * np.cos(wanted)).sum(), rel=1e-10)
    inputs = {n: v for n, v in given.items() if n not in wrt}
    ad.check_grads(program, {n: given[n] for n in wrt}, inputs, directions=2)


def test_one_correction_of_two_is_refused():
    with pytest.raises(ConfigError, match="give both log_q and negative_log_q, or neither"):
        losses.sampled_softmax(None, None, log_q=1)


@pytest.mark.parametrize("rows", [16, 37])
def test_a_softmax_among_the_rows_of_a_batch_is_right_for_whole_vectors_and_a_rest(rows):
    class Module(nn.Module):
        def loss(self, q, x):
            return losses.mean(losses.in_batch_softmax(q, x))

    module, specs = Module(), [nn.spec.Tensor(["N", D], "float64")] * 2
    method = nn.spec.MethodSpec(module.loss, ["q", "x"], specs, "plain", "plain")
    exported, _ = module.export_tvm({"loss": method})
    given = {name: RNG.normal(size=(rows, D)) for name in ("q", "x")}
    program = st.value_and_grad(exported, "loss", list(given), target="cpu")
    loss, _ = program(given, {})
    wanted = softmax_loss(given["q"] @ given["x"].T, np.arange(rows)).mean()
    assert float(loss.numpy()) == pytest.approx(wanted, rel=1e-12)
    ad.check_grads(program, given, {}, directions=2)


def test_a_tiled_softmax_over_many_rows_is_that_of_float64_on_any_threads():
    rows, width, count = 20_011, 24, 137  # no multiples of tiles, all parts and a second chunk

    class Module(nn.Module):
        def loss(self, x, table, items):
            return losses.mean(losses.tiled_softmax(x, table, items))

    module = Module()
    specs = [nn.spec.Tensor(["N", width], "float32"), nn.spec.Tensor([rows, width], "float32")]
    specs.append(nn.spec.Tensor(["N"], "int64"))
    names = ["x", "table", "items"]
    method = nn.spec.MethodSpec(module.loss, names, specs, "plain", "plain")
    exported, _ = module.export_tvm({"loss": method})
    program = st.value_and_grad(exported, "loss", ["x", "table"], target="cpu")
    rng = np.random.default_rng(0)
    x, table = (rng.normal(size=(n, width)).astype("f4") for n in (count, rows))
    items = rng.integers(0, rows, count)
    items[:2] = 0, rows - 1
    scores = x.astype("f8") @ table.T.astype("f8")
    wanted = softmax_loss(scores, items).mean()
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    weights[np.arange(count), items] -= 1
    before, found = st.runtime.num_threads(), []
    try:
        for threads in (1, before):
            st.set_num_threads(threads)
            loss, gradients = program({}, {"x": x, "table": table, "items": items})
            assert float(loss.numpy()) == pytest.approx(wanted, rel=1e-6)
            for name, of in (("x", weights @ table), ("table", weights.T @ x)):
                np.testing.assert_allclose(
                    gradients[name].numpy(), of / count, rtol=1e-4, atol=1e-7
                )
            found.append(gradients["table"].numpy())
    finally:
        st.set_num_threads(before)
    assert found[0].tobytes() == found[1].tobytes()


def test_bert4rec_learns_the_same_from_a_softmax_in_tiles():
    ends, rng = np.arange(21), np.random.default_rng(0)
    items = [st.data.Ragged(rng.integers(0, V, 20 * n), ends * n) for n in (4, 1)]
    batch, found = st.Batch(np.empty((20, 0)), items), []
    for softmax in ("full", "tiled"):
        model = st.models.BERT4Rec(dict(history=V, item=V), dim=8, blocks=1, softmax=softmax)
        trainer = st.Trainer(model, st.optim.sgd(0.1), seed=1, target="cpu")
        taken = [float(trainer.step(batch)) for _ in range(3)]
        tiles = "tiled_softmax_loss" in str(trainer.program.module)
        assert (tiles, model.config()["softmax"]) == (softmax == "tiled", softmax)
        found.append((taken, trainer.query_vectors([batch])))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-3, atol=1e-6)


def test_a_softmax_of_another_kind_is_refused():
    with pytest.raises(
        ConfigError, match="BERT4Rec: softmax is 'half'; it must be 'full' or 'tiled'"
    ):
        st.models.BERT4Rec({"history": V, "item": V}, softmax="half")

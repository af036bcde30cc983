# SPDX-License-Identifier: Apache-2.0
"""Numeric embeddings: the papers' equations in float64, derivatives, and models that have them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain.ad import check_grads
from sparsetrain.cli import main
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.models.numbers import LEARNT
from sparsetrain.runtime import as_numpy
from sparsetrain.verify.widen import widen_function
from tests.helpers import slow_except

BINS = [[0.5, 1.0, 3.0], [2.0], [-1.0, 1.0]]  # widths are powers of 2: exact in float32
N, D, B = len(BINS), 4, 7


class Probe(nn.Module):
    """A sum of the numbers' vectors, each number times a factor."""

    def __init__(self, kind):
        self.numbers = LEARNT[kind](BINS, D, True, 0.5)

    def forward(self, factors, dense):
        return nn.op.sum(self.numbers(dense) * factors)


def dense_inputs():
    rng = np.random.default_rng(3)
    numbers = np.vstack([rng.normal(0, 2, (B - 2, N)), [[0.5, 9.0, -7.0], [-8.0, 2.0, 1.0]]])
    flags = rng.integers(0, 2, (B, N))
    flags[-2:] = 0
    return np.hstack([numbers, flags, np.zeros((B, 1))])  # the last is no number's


def probe(kind):
    made = Probe(kind)
    shapes = {"factors": (N, D), "dense": (2 * N + 1,)}
    specs = {name: nn.spec.Tensor(["B", *shape], "float32") for name, shape in shapes.items()}
    module, parameters = made.export_tvm({"forward": specs})
    rng = np.random.default_rng(0)
    params = {
        name: np.float64(p.attrs["initial"])
        if "initial" in p.attrs
        else rng.standard_normal([*map(int, p.shape)])
        for name, p in parameters
    }
    inputs = {"factors": rng.standard_normal((B, N, D)), "dense": dense_inputs()}
    learnt = [name for name, p in parameters if "initial" not in p.attrs]
    program = st.value_and_grad(widen_function(module, "forward"), "forward", learnt)
    return program, params, inputs


def single(number):
    """A constant of the program, which was float32 before it was widened."""
    return np.float64(np.float32(number))


def shares(i, x):
    """Equation 1, of bins with open ends that are as wide as their neighbours."""
    cuts = BINS[i]
    first, last = (cuts[1] - cuts[0], cuts[-1] - cuts[-2]) if len(cuts) > 1 else (1.0, 1.0)
    edges = [cuts[0] - first, *cuts, cuts[-1] + last]
    found = []
    for t in range(1, len(edges)):
        share = (x - edges[t - 1]) / (edges[t] - edges[t - 1])
        if x < edges[t - 1] and t > 1:
            share = 0.0
        elif x >= edges[t] and t < len(edges) - 1:
            share = 1.0
        found.append(share)
    return found


def piecewise(params, i, x):
    """Equation 1, and a linear layer."""
    found = shares(i, x)
    return found @ params["numbers.weight"][i][: len(found)] + params["numbers.bias"][i]


def binned(params, i, x):
    """The same of shares divided by the root of the bins, and a row of the weights for the bin."""
    weight, found = params["numbers.weight"][i], np.array(shares(i, x))
    bins = len(weight) // 2
    of_bin = weight[bins + np.searchsorted(BINS[i], x, side="right")]
    scaled = found * single(1 / np.sqrt(bins))
    return scaled @ weight[: len(found)] + params["numbers.bias"][i] + of_bin


def periodic(params, i, x):
    """Equation 2, and a linear layer."""
    angles = single(2 * np.pi) * params["numbers.c"][i] * x
    waves = np.concatenate([np.sin(angles), np.cos(angles)])
    return waves @ params["numbers.weight"][i] + params["numbers.bias"][i]


def autodis(params, i, x):
    """Equations 5, 6, 8 and the weighted average."""
    h = params["numbers.w"][i] * x
    h = np.where(h > 0, h, 0.01 * h)
    scores = h @ params["numbers.mix"][i] + single(0.1) * h
    shares = np.exp(scores - scores.max())
    return shares / shares.sum() @ params["numbers.weight"][i]


EQUATIONS = {"piecewise": piecewise, "binned": binned, "periodic": periodic, "autodis": autodis}


@pytest.mark.parametrize("kind", LEARNT)
def test_it_is_the_papers_equation_and_a_missing_number_has_a_vector_of_its_own(kind):
    program, params, inputs = probe(kind)
    dense, wanted = inputs["dense"], 0.0
    for row in range(B):
        for i in range(N):
            is_missing = dense[row, N + i] == 1
            of = EQUATIONS[kind](params, i, dense[row, i])
            vector = params["numbers.missing"][i] if is_missing else of
            wanted += vector @ inputs["factors"][row, i]
    loss, _ = program(params, inputs)
    assert float(as_numpy(loss)) == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("kind", LEARNT)
def test_its_gradients_are_central_differences(kind):
    program, params, inputs = probe(kind)
    learnt = {n: v for n, v in params.items() if n.partition(".")[2] not in CONSTANTS}
    given = {n: v for n, v in params.items() if n not in learnt}

    def call(changed, given_inputs):
        return program({**changed, **given}, given_inputs)

    check_grads(call, learnt, inputs, step=1e-6, rtol=1e-5, atol=1e-7)


CONSTANTS = ("starts", "scales", "lows", "highs", "begins")


def table(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    price, age = rng.lognormal(3, 1, rows), rng.integers(1, 90, rows)
    click = (np.abs(age - 40) < 15).astype(np.int8)
    return pa.table(
        {
            "click": click,
            "price": pa.array(price, mask=rng.random(rows) < 0.2),
            "age": pa.array(age),
            "site": pa.array(rng.integers(0, 5, rows).astype(str)),
        }
    )


def encoder(rows, **settings):
    schema = st.data.Schema(label="click", dense=("price", "age"), categories=("site",))
    schema = st.data.with_buckets(schema, "piecewise")
    return st.data.Encoder.fit(rows, schema=schema, min_count=1, **settings)


MODELS = {
    "lr": {},
    "deepfm": {"dim": 4, "hidden": (8,)},
    "dlrm": {"dim": 4, "bottom": (8,), "top": (8,)},
    "mmoe": {"dim": 4, "expert": (8,), "tower": (4,)},
}


PAIRS = [("piecewise", "dlrm"), ("piecewise", "lr"), ("piecewise", "deepfm"), ("piecewise", "mmoe")]
PAIRS += [("periodic", "dlrm"), ("autodis", "dlrm"), ("binned", "dlrm"), ("binned", "lr")]


@pytest.mark.parametrize(("kind", "name"), slow_except(PAIRS[:2], PAIRS))
def test_a_model_learns_with_them_and_loads_to_the_same_predictions(name, kind, tmp_path):
    rows = table()
    known = encoder(rows, missing_flags=True)
    model = st.models.MODELS[name].for_encoder(known, numbers=kind, **MODELS[name])
    trainer = st.Trainer(model, st.optim.adam(0.02), encoder=known)
    history = trainer.fit(rows, epochs=6, batch_size=32, progress=None)
    assert history["epochs"][-1]["loss"] < history["epochs"][0]["loss"]
    trainer.save(tmp_path / "saved")
    again = st.load(tmp_path / "saved", target="cpu")
    assert again.model.config() == model.config()
    assert np.array_equal(again.predict(rows), trainer.predict(rows))


def test_a_dlrms_numbers_go_through_its_bottom_alone():
    rest = {"dim": 4, "bottom": (8,), "top": (8,)}
    plain = st.models.DLRM([5, 6], num_dense=5, **rest)
    made = st.models.DLRM([5, 6], num_dense=5, numbers="autodis", number_bins=[[], []], **rest)
    widths = [
        int(layer.weight.shape[1])
        for m in (plain, made)
        for layer in (m.bottom.layers[0], m.top.layers[0])
    ]
    assert widths == [5, 7, 2 * 4 + 3, 7]  # three inputs are no numbers


def test_boundaries_are_the_quantiles_as_inputs_have_them():
    rows = table()
    arguments = encoder(rows, missing_flags=True).model_arguments
    assert arguments["missing_flags"] and arguments["num_dense"] == 4
    bins = arguments["number_bins"]
    ages = np.sort(rows["age"].to_numpy())
    assert len(bins) == 2 and len(bins[1]) == 31
    assert np.float32(np.log(ages[len(ages) // 2] + 3)) in np.float32(bins[1])
    assert [*encoder(rows).columns] == ["site"]


def test_a_model_of_an_encoder_that_bins_all_numbers_is_binned():
    rows = table()
    schema = st.data.Schema(label="click", dense=("price", "age"), categories=("site",))
    kinds = {"binned": "binned", "quantiles": "scaled", "scaled": "scaled"}
    for numbers, wanted in kinds.items():
        known = st.data.Encoder.fit(rows, schema=st.data.with_buckets(schema, numbers))
        assert st.models.LR.for_encoder(known).config()["numbers"] == wanted
    assert st.models.LR.for_encoder(encoder(rows), numbers="piecewise").config()["number_bins"]


def test_a_column_without_numbers_can_be_binned_and_be_no_category():
    rows = table().append_column("none", pa.nulls(300, pa.float64()))
    schema = st.data.Schema(label="click", dense=("age", "none"), categories=("site",))
    known = st.data.Encoder.fit(rows, schema=st.data.with_buckets(schema, "binned"))
    assert [len(each) for each in known.model_arguments["number_bins"]] == [31, 1]
    with pytest.raises(DataError, match="column none: no number from which to learn quantiles"):
        st.data.Encoder.fit(rows, schema=st.data.with_buckets(schema, "quantiles"))


def test_piecewise_without_boundaries_and_unknown_kinds_are_refused():
    with pytest.raises(ConfigError, match="needs boundaries of every number"):
        st.models.LR([3], num_dense=2, numbers="binned")
    with pytest.raises(ConfigError, match="numbers is 'spline'; it must be"):
        st.models.LR([3], num_dense=2, numbers="spline")
    with pytest.raises(ConfigError, match="needs more than"):
        st.models.LR([3], num_dense=0, numbers="periodic")
    with pytest.raises(ConfigError, match=r"number_bins\[0\]"):
        st.models.LR([3], num_dense=1, numbers="piecewise", number_bins=[[2.0, 1.0]])
    with pytest.raises(ConfigError, match="number_bins"):  # equal in float32
        st.models.LR([3], num_dense=1, numbers="binned", number_bins=[[1.0, 1.0 + 1e-9]])


def test_the_command_trains_with_them(tmp_path, capsys):
    pq.write_table(table(), tmp_path / "rows.parquet")
    run = tmp_path / "run"
    command = ["train", str(tmp_path / "rows.parquet"), "--label", "click", "--model", "lr"]
    assert main([*command, "--numbers", "piecewise", "--out", str(run)]) == 0
    config = st.load(run).model.config()
    assert config["numbers"] == "piecewise" and config["missing_flags"]
    assert all(config["number_bins"])

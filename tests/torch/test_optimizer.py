# SPDX-License-Identifier: Apache-2.0
"""Tables and optimizers of this package in PyTorch's loops, beside PyTorch's dense ones.

Run with ``python -m pytest -m peers``; needs the extra `torch`.
"""

import copy
import ctypes
import pickle

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.errors import CheckpointError, ConfigError, DataError, NumericalError
from tests import heap

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers

V, D = 60, 8
EXACT = {"mode": "exact", "update": "sparse"}
# Ours, and PyTorch's dense optimizer of the same numbers.
DENSE = {
    "adam": (st.optim.adam(0.05, **EXACT), "Adam", {"lr": 0.05}),
    "adam, decay": (
        st.optim.adam(0.05, weight_decay=0.1, **EXACT),
        "Adam",
        {"lr": 0.05, "weight_decay": 0.1},
    ),
    "adamw": (st.optim.adamw(0.05, **EXACT), "AdamW", {"lr": 0.05}),
    "momentum": (st.optim.momentum(0.05, **EXACT), "SGD", {"lr": 0.05, "momentum": 0.9}),
    "rmsprop": (st.optim.rmsprop(0.01, **EXACT), "RMSprop", {"lr": 0.01}),
    "adagrad": (st.optim.adagrad(0.05), "Adagrad", {"lr": 0.05}),
    "sgd": (st.optim.sgd(0.05), "SGD", {"lr": 0.05}),
}


def table(**options):
    torch.manual_seed(0)
    return st.torch.RowSparseEmbedding(V, D, **options)


def twin(of, kind=torch.nn.Embedding, **options):
    other = kind(V, D, **options)
    other.load_state_dict(of.state_dict())
    return other


def batches(count, *shape):
    rng = np.random.default_rng(1)
    return [torch.from_numpy(rng.integers(0, V, shape)) for _ in range(count)]


def train(layer, optimizer, steps, scheduler=None, start=0):
    """Each step looks the table up twice, in two parts whose gradients accumulate."""
    for ids in batches(steps, 2, 3, 4)[start:]:
        optimizer.zero_grad()
        for part in ids:
            (layer(part).square().sum() + 0.5 * layer(part[0]).sum()).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


@pytest.mark.parametrize("name", DENSE)
def test_weights_are_those_of_the_dense_optimizer_under_a_schedule(name):
    rule, peer, numbers = DENSE[name]
    ours = table(padding_idx=5)
    theirs = twin(ours, padding_idx=5)
    for layer, optimizer in (
        (ours, st.torch.RowSparseOptimizer(ours.parameters(), rule)),
        (theirs, getattr(torch.optim, peer)(theirs.parameters(), **numbers)),
    ):
        train(layer, optimizer, 40, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95))
    np.testing.assert_allclose(ours.weight.detach(), theirs.weight.detach(), atol=2e-6)


@pytest.mark.parametrize("name", ["ftrl", "rowwise_adagrad", "adam"])
def test_a_step_has_the_bits_of_the_optimizer_that_it_is_given(name):
    rule, layer = getattr(st.optim, name)(0.1), table()
    params = {"w": st.runtime.as_tensor(layer.weight.detach().numpy())}
    state = rule.init(params)
    optimizer = st.torch.RowSparseOptimizer(layer.parameters(), rule)
    for ids in batches(5, 7):
        optimizer.zero_grad()
        layer(ids).square().sum().backward()
        values = 2 * st.runtime.as_numpy(params["w"])[ids]
        rule.apply_(params, {"w": st.RowSparse.from_numpy(ids, values, V)}, state)
        optimizer.step()
    np.testing.assert_array_equal(layer.weight.detach(), st.runtime.as_numpy(params["w"]))


def test_the_table_is_not_copied():
    rows, width = 500_000, 16
    layer = st.torch.RowSparseEmbedding(rows, width)
    place = layer.weight.data_ptr()
    optimizer = st.torch.RowSparseOptimizer(layer.parameters(), st.optim.adagrad(0.1))
    before = heap.resident_bytes()
    for ids in torch.arange(64).reshape(4, 16):
        layer(ids).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert heap.resident_bytes() - before < rows * width  # a quarter of the table
    assert layer.weight.data_ptr() == place
    assert torch.equal(optimizer.state[layer.weight]["sum"][:64], torch.ones(64, width))


@pytest.mark.parametrize("rule", [st.optim.adam(0.05, **EXACT), st.optim.ftrl(0.05)])
def test_a_loop_goes_on_from_saved_state_to_the_same_bits(rule, tmp_path):
    first, second = table(), table()
    once = st.torch.RowSparseOptimizer(first.parameters(), rule)
    train(first, once, 6)
    torch.save([first.state_dict(), once.state_dict()], tmp_path / "saved.pt")
    train(first, once, 12, start=6)
    weights, state = torch.load(tmp_path / "saved.pt", weights_only=True)
    again = st.torch.RowSparseOptimizer(second.parameters(), rule)
    second.load_state_dict(weights)
    again.load_state_dict(state)
    train(second, again, 12, start=6)
    assert torch.equal(first.weight, second.weight)
    assert once.state_dict()["param_groups"] == again.state_dict()["param_groups"]


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_follow_those_of_pytorch(mode):
    torch.manual_seed(0)
    ours = st.torch.RowSparseEmbeddingBag(V, D, mode=mode, padding_idx=5)
    theirs = twin(ours, torch.nn.EmbeddingBag, mode=mode, padding_idx=5)
    offsets = torch.tensor([0, 3, 3, 9])
    for layer, optimizer in (
        (ours, st.torch.RowSparseOptimizer(ours.parameters(), DENSE["adam"][0])),
        (theirs, torch.optim.Adam(theirs.parameters(), 0.05)),
    ):
        for ids in batches(10, 12):
            optimizer.zero_grad()
            layer(ids, offsets).square().sum().backward()
            optimizer.step()
    np.testing.assert_allclose(ours.weight.detach(), theirs.weight.detach(), atol=2e-6)


def test_a_whole_model_may_follow_one_optimizer_with_groups():
    torch.manual_seed(0)
    ours = torch.nn.Sequential(table(), torch.nn.Flatten(), torch.nn.Linear(4 * D, 1))
    theirs = copy.deepcopy(ours)
    theirs[0] = twin(ours[0])
    for model, make in (
        (ours, lambda groups: st.torch.RowSparseOptimizer(groups, st.optim.adam(0.01, **EXACT))),
        (theirs, lambda groups: torch.optim.Adam(groups, lr=0.01)),
    ):
        layers = [{"params": model[2].parameters()}, {"params": model[0].parameters(), "lr": 0.05}]
        optimizer = make(layers)
        for ids in batches(10, 6, 4):
            optimizer.zero_grad()
            model(ids).square().mean().backward()
            optimizer.step()
    for one, other in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_rows_are_current_whenever_the_table_is_read():
    layer = table()
    theirs = twin(layer)
    train(layer, st.torch.RowSparseOptimizer(layer.parameters(), DENSE["adam"][0]), 9)
    copied = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))  # noqa: S301
    train(theirs, torch.optim.Adam(theirs.parameters(), 0.05), 9)
    for read in (*(other.weight for other in copied), *layer.state_dict().values(), layer.weight):
        np.testing.assert_allclose(read.detach(), theirs.weight.detach(), atol=2e-6)


@pytest.mark.parametrize(
    "read",
    [
        lambda model: [*model.parameters()][0],
        lambda model: dict(model.named_parameters())["0.weight"],
        lambda model: [*model[0].parameters(recurse=False)][0],
    ],
    ids=["parameters", "named_parameters", "parameters of the layer"],
)
def test_rows_are_current_when_parameters_are_listed(read):
    model = torch.nn.Sequential(table())
    theirs = twin(model[0])
    train(model[0], st.torch.RowSparseOptimizer(model.parameters(), DENSE["adam"][0]), 9)
    train(theirs, torch.optim.Adam(theirs.parameters(), 0.05), 9)
    np.testing.assert_allclose(read(model).detach(), theirs.weight.detach(), atol=2e-6)


KEPT = {
    "detach": lambda p: p.detach(),
    "data": lambda p: p.data,
    "an average": lambda p: torch.zeros(V, D).lerp_(p, 1.0),
    "a list of an operator": lambda p: torch._foreach_mul([p], 1.0)[0],
    "arithmetic": lambda p: p + 0,
    "numpy": lambda p: torch.from_numpy(np.from_dlpack(p.detach())),
    "a list of numbers": lambda p: torch.tensor(p.tolist()),
    "a copy": lambda p: copy.deepcopy(p),
    "memory": lambda p: torch.frombuffer(
        (ctypes.c_float * p.numel()).from_address(p.data_ptr()), dtype=torch.float32
    ).view(V, D),
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("make", [table, lambda: pickle.loads(pickle.dumps(table()))])  # noqa: S301
def test_rows_are_current_in_parameters_that_were_listed_before_the_loop(make, name):
    model = torch.nn.Sequential(make())
    theirs, (kept,) = twin(model[0]), [*model.parameters()]
    optimizer = st.torch.RowSparseOptimizer([kept], DENSE["adam"][0])
    peer = torch.optim.Adam(theirs.parameters(), 0.05)
    for steps in (5, 9):
        train(model[0], optimizer, steps)
        train(theirs, peer, steps)
        np.testing.assert_allclose(KEPT[name](kept).detach(), theirs.weight.detach(), atol=2e-6)


def test_a_loop_that_reads_no_values_leaves_rows_behind():
    layer = table()
    optimizer = st.torch.RowSparseOptimizer(layer.parameters(), DENSE["adam"][0])
    history = optimizer._groups[0].state.tables.table("parameter 0").histories[0]
    for step, ids in enumerate(batches(5, 4), 1):
        optimizer.zero_grad()
        layer(ids).sum().backward()
        (grad,) = [p.grad for p in layer.parameters() if p.requires_grad and p.is_leaf]
        assert grad.shape == layer.weight.shape
        optimizer.step()
        assert sum(p.numel() for p in layer.parameters()) == V * D
        assert (history.base, history.now) == (0, step)


@pytest.mark.parametrize("slot", ["mean", "square"])
def test_a_state_with_slots_that_are_not_finite_is_refused(slot):
    layer = table()
    optimizer = st.torch.RowSparseOptimizer(layer.parameters(), st.optim.adam(0.1))
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0][slot][3, 1] = np.nan
    with pytest.raises(CheckpointError, match=rf"'0:{slot}' holds numbers that are not finite"):
        optimizer.load_state_dict(saved)
    assert torch.isfinite(optimizer.state[layer.weight][slot]).all()


def test_a_sparse_layer_of_pytorch_is_updated_where_nothing_is_left_behind():
    layer = torch.nn.Embedding(V, D, sparse=True)
    lazy = st.torch.RowSparseOptimizer(layer.parameters(), st.optim.adagrad(0.1))
    before = layer.weight.detach().clone()
    layer(torch.tensor([3])).sum().backward()
    lazy.step()
    assert (layer.weight != before).any(1).nonzero().tolist() == [[3]]
    exact = st.torch.RowSparseOptimizer(layer.parameters(), DENSE["adam"][0])
    with pytest.raises(ConfigError, match="read before they were caught up"):
        for ids in ([3], [4], [3]):
            exact.zero_grad()
            layer(torch.tensor(ids)).sum().backward()
            exact.step()


def test_numbers_that_are_not_finite_change_nothing():
    layer = table()
    optimizer = st.torch.RowSparseOptimizer(layer.named_parameters(), st.optim.adam(0.1))
    before = layer.weight.detach().clone()
    (layer(torch.tensor([1])) * np.inf).sum().backward()
    with pytest.raises(NumericalError, match="gradient of 'weight' is not finite"):
        optimizer.step()
    assert torch.equal(layer.weight, before)


def optimizer_of(layer, rule=None):
    return st.torch.RowSparseOptimizer(layer.parameters(), rule or st.optim.sgd(0.1))


def moved():
    layer = table()
    optimizer = optimizer_of(layer)
    layer.weight.data = layer.weight.data.clone()
    layer(torch.tensor([1])).sum().backward()
    optimizer.step()


def of_another():
    saved = optimizer_of(table(), st.optim.adam(0.1)).state_dict()
    optimizer_of(table()).load_state_dict(saved)


REFUSED = {
    "an id outside": (lambda: table()(torch.tensor([1, -1])), DataError, "id -1 is outside"),
    "ids of floats": (lambda: table()(torch.tensor([1.0])), DataError, "int32 or int64"),
    "max_norm": (lambda: table(max_norm=1.0), ConfigError, "max_norm is not supported"),
    "a table on CUDA": (lambda: table(device="cuda"), ConfigError, "on the CPU, not .* on cuda"),
    "a table in half": (lambda: table(dtype=torch.float16), ConfigError, "float32 or float64"),
    "a parameter elsewhere": (
        lambda: optimizer_of(torch.nn.Linear(1, 1, device="meta")),
        ConfigError,
        "'parameter 0' is on meta: .* only on the CPU",
    ),
    "a schedule": (
        lambda: optimizer_of(table(), st.optim.sgd(st.optim.warmup(5))),
        ConfigError,
        "torch.optim.lr_scheduler",
    ),
    "clip_norm of groups": (
        lambda: st.torch.RowSparseOptimizer(
            [{"params": table().parameters()}, {"params": table().parameters()}],
            st.optim.sgd(0.1, clip_norm=1.0),
        ),
        ConfigError,
        "one parameter group",
    ),
    "memory that moved": (moved, ConfigError, "was moved"),
    "another state": (of_another, CheckpointError, "a different optimizer"),
    "vmap": (lambda: torch.vmap(table())(torch.tensor([[1]])), ConfigError, "torch.vmap"),
    "a copy": (lambda: copy.deepcopy(optimizer_of(table())), TypeError, "save its state_dict"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_by_name(name):
    make, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        make()

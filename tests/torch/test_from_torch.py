# SPDX-License-Identifier: Apache-2.0
"""Modules of PyTorch trained here beside PyTorch: losses, weights, and what is refused by name.

Run with ``python -m pytest -m peers``; needs the extra `torch`.
"""

import copy
import gc

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.errors import ConfigError, DataError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers

from torch import nn  # noqa: E402
from tvm.relax import op  # noqa: E402

from sparsetrain.torch import translations  # noqa: E402
from tests.torch.modules import BATCH, CASES, DIM, LENGTH, ROWS, SASRec  # noqa: E402

STEPS = 50


def made(case):
    torch.manual_seed(0)
    module = case.make()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.eval()
    return module, [(case.draw(), case.label()) for _ in range(STEPS)]


# Adagrad begins at 1: from 0 its first step has the size of the rate whatever the gradient, so that
# rounding decides its sign.
RULES = (
    (
        st.optim.adagrad(0.02, eps=1e-8, initial=1.0),
        lambda params: torch.optim.Adagrad(params, 0.02, initial_accumulator_value=1, eps=1e-8),
    ),
    (st.optim.sgd(0.1), lambda params: torch.optim.SGD(params, 0.1)),
)


@pytest.mark.parametrize("name", CASES)
def test_fifty_losses_are_those_of_pytorch_and_weights_go_back(name):
    case = CASES[name]
    module, batches = made(case)
    inputs, label = batches[0]
    model = st.from_torch(module, inputs, (label,), case.loss)
    program = st.value_and_grad(model.export(), "loss", model.trainable, densify=case.densify)
    predict = st.Program(model.export(), "predict")
    for optimizer, peer in RULES:
        params, theirs = model.initialize(), copy.deepcopy(module)
        state, other = optimizer.init(params), peer(theirs.parameters())
        losses = np.empty((STEPS, 2))
        for number, (inputs, label) in enumerate(batches):
            loss, gradients = program(params, model.inputs(*inputs, label))
            optimizer.apply_(params, gradients, state, loss=loss)
            other.zero_grad()
            expected = case.loss(theirs(*inputs), label)
            expected.backward()
            other.step()
            losses[number] = float(loss.numpy()), expected.item()
        assert np.abs(losses[:, 0] - losses[:, 1]).max() < 1e-5
    sparse = {n for n, gradient in gradients.items() if isinstance(gradient, st.RowSparse)}
    kinds = nn.Embedding | nn.EmbeddingBag
    tables = {f"{n}.weight" for n, layer in module.named_modules() if isinstance(layer, kinds)}
    assert sparse == tables - {*case.densify}
    ours = predict(params, model.inputs(*inputs)).numpy()
    model.to_torch_(params)
    scores = module.eval()(*inputs).detach()
    np.testing.assert_allclose(torch.tensor(ours).sigmoid(), scores.sigmoid(), atol=1e-6)


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))
        self.dropout = nn.Dropout(0.25)

    def forward(self, x):
        return self.dropout(x * self.weight)


def test_dropout_draws_a_mask_of_its_rate_by_seed_and_step():
    x = torch.ones(512, 64)
    model = st.from_torch(Dropped(), (x,), (), torch.mean)
    program = st.value_and_grad(model.export(), "loss")

    def kept(**key):
        gradient = program(model.initialize(), model.inputs(x, **key))[1]["weight"]
        return gradient.numpy() * 512 * 64 * 0.75  # elements of each column that were kept

    np.testing.assert_allclose(kept(), np.round(kept()), atol=1e-2)
    assert abs(kept().sum() / x.numel() - 0.75) < 4 * (0.75 * 0.25 / x.numel()) ** 0.5
    np.testing.assert_array_equal(kept(step=1), kept(step=1))
    assert (kept(step=1) != kept(step=2)).any() and (kept(seed=1) != kept(seed=2)).any()
    predicted = st.Program(model.export(), "predict")(model.initialize(), model.inputs(x))
    np.testing.assert_array_equal(predicted.numpy(), 1)


def test_dropout_in_layers_of_attention_acts():
    case = CASES["SASRec"]
    inputs, label = case.draw(), case.label()
    model = st.from_torch(SASRec(0.2), inputs, (label,), case.loss)
    program = st.value_and_grad(model.export(), "loss")
    losses = {
        float(program(model.initialize(), model.inputs(*inputs, label, step=step))[0].numpy())
        for step in (1, 2, 3)
    }
    assert len(losses) == 3 and np.isfinite([*losses]).all()


class Apply(nn.Module):
    """A layer in front of what a test refuses."""

    def __init__(self, function=lambda x: x, **layers):
        super().__init__()
        self.linear, self.function = nn.Linear(DIM, 1), function
        self.layers = nn.ModuleDict(layers)

    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x)
        return self.function(self.linear(x))


def imported(module, *inputs):
    return st.from_torch(module, inputs or (torch.randn(4, DIM),), (), torch.mean)


def test_the_last_of_a_sequence_is_read():
    model = imported(Apply(lambda x: x[:, -1]), torch.randn(4, LENGTH, DIM))
    assert set(model.trainable) == {"linear.weight", "linear.bias"}


def test_the_example_may_be_views_of_one_tensor():
    rows = torch.randn(4, 2 * DIM)
    module = nn.Bilinear(DIM, DIM, 1)
    model = st.from_torch(module, (rows[:, :DIM], rows[:, DIM:]), (), torch.mean)
    assert set(model.trainable) == {"weight", "bias"}


def bags(**options):
    module = Apply(bag=nn.EmbeddingBag(ROWS, DIM, **options))
    return imported(module, torch.zeros((BATCH, LENGTH), dtype=torch.int64))


def bad_offsets():
    case = CASES["MLP with bags"]
    inputs, label = case.draw(), case.label()
    model = st.from_torch(case.make(), inputs, (label,), case.loss)
    model.inputs(*inputs[:3], torch.flip(inputs[3], [0]))


REFUSED = {
    "batch norm in training mode": (
        lambda: imported(Apply(norm=nn.BatchNorm1d(DIM))),
        ConfigError,
        r"batch norm in training mode: module\.layers\.norm\.eval\(\)",
    ),
    "random numbers": (
        lambda: imported(Apply(lambda x: x + torch.randn_like(x))),
        ConfigError,
        "randn.* draws random numbers",
    ),
    "maxima of bags": (lambda: bags(mode="max"), ConfigError, "mode='max' has no translation"),
    "means of padded bags": (lambda: bags(mode="mean", padding_idx=0), ConfigError, "padding_idx"),
    "an operator of its own": (
        lambda: imported(Apply(torch.special.bessel_j0)),
        ConfigError,
        "special_bessel_j0.* no translation",
    ),
    "convolutions in two dimensions": (
        lambda: imported(Apply(conv=nn.Conv2d(1, 1, 1)), torch.randn(4, 1, 3, DIM)),
        ConfigError,
        r"'convolution', aten.convolution.default: only Conv1d with groups=1",
    ),
    "a branch on numbers": (
        lambda: imported(Apply(lambda x: x if x.sum() > 0 else -x)),
        ConfigError,
        "PyTorch cannot export the module",
    ),
    "a fixed batch": (
        lambda: imported(Apply(lambda x: x.reshape(4))),
        ConfigError,
        "fixes the batch size at 4",
    ),
    "a half module": (
        lambda: imported(Apply().half(), torch.randn(4, DIM).half()),
        ConfigError,
        r"'linear.weight' is torch.float16: pass module.float\(\)",
    ),
    "offsets that fall": (bad_offsets, DataError, "'offsets' must rise from 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_translation_is_refused_by_name(name):
    make, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    "name", ["maxima of bags", "means of padded bags", "an operator of its own"]
)
def test_a_refusal_is_all_that_is_printed(name, capfd):
    with pytest.raises(ConfigError):
        REFUSED[name][0]()
    gc.collect()
    assert capfd.readouterr() == ("", "")


def unchanged(node, importer):
    return importer.env[node.args[0]]


def largest(node, importer):
    return op.max(importer.env[node.args[0]], node.args[1], node.args[2])


WRONG = {
    "relu": (lambda x: (x - 3).relu() * 2, "relu.default", unchanged),
    "a sum": (lambda x: x.exp() + x.sum(1, keepdim=True), "sum.dim_IntList", largest),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_translation_is_named_by_its_first_node(name, monkeypatch):
    function, target, translation = WRONG[name]
    monkeypatch.setitem(translations.TRANSLATIONS, target, translation)
    module = nn.Sequential(nn.Embedding(ROWS, DIM), nn.Linear(DIM, DIM), Apply(function))
    node = target.partition(".")[0]
    with pytest.raises(ConfigError, match=f"first that differs is '{node}.*', aten.{target}"):
        imported(Apply(lambda x: function(x.expand(-1, 3))), torch.randn(4, DIM))
    with pytest.raises(ConfigError, match=f"first that differs is '{node}.*', aten.{target}"):
        imported(module, torch.zeros((4, 3), dtype=torch.int64))

# SPDX-License-Identifier: Apache-2.0
"""Two hundred steps of each formula beside PyTorch's dense optimizer of that name.

Run with ``python -m pytest -m peers``; needs the extra `peers`.
"""

import numpy as np
import pytest

from sparsetrain import optim
from sparsetrain.runtime import as_numpy, as_tensor

pytestmark = pytest.mark.peers

STEPS = 200
CASES = {
    "sgd": (optim.sgd(0.05), "SGD", {"lr": 0.05}),
    "sgd, decay": (optim.sgd(0.05, weight_decay=0.01), "SGD", {"lr": 0.05, "weight_decay": 0.01}),
    "momentum": (optim.momentum(0.01), "SGD", {"lr": 0.01, "momentum": 0.9}),
    "nesterov": (
        optim.nesterov(0.01, weight_decay=1e-3),
        "SGD",
        {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
    ),
    "adagrad": (
        optim.adagrad(0.05, initial=0.1, weight_decay=1e-3),
        "Adagrad",
        {"lr": 0.05, "initial_accumulator_value": 0.1, "weight_decay": 1e-3},
    ),
    "rmsprop": (optim.rmsprop(0.003), "RMSprop", {"lr": 0.003}),
    "adam": (optim.adam(0.003), "Adam", {"lr": 0.003}),
    "adam, decay": (
        optim.adam(0.003, weight_decay=0.01),
        "Adam",
        {"lr": 0.003, "weight_decay": 0.01},
    ),
    "adamw": (optim.adamw(0.003), "AdamW", {"lr": 0.003}),
}


def gradients(shape):
    rng = np.random.default_rng(0)
    return (0.1 * rng.standard_normal(shape).astype("f4") for _ in range(STEPS))


def trained(optimizer, weight):
    params = {"w": as_tensor(weight)}
    state = optimizer.init(params)
    for gradient in gradients(weight.shape):
        optimizer.apply_(params, {"w": as_tensor(gradient)}, state)
    return as_numpy(params["w"])


@pytest.mark.parametrize("name", CASES)
def test_200_steps_follow_pytorch(name):
    torch = pytest.importorskip("torch")
    ours, theirs, options = CASES[name]
    weight = np.random.default_rng(1).standard_normal((40, 30)).astype("f4")
    param = torch.nn.Parameter(torch.tensor(weight))
    optimizer = getattr(torch.optim, theirs)([param], **options)
    for gradient in gradients(weight.shape):
        param.grad = torch.tensor(gradient)
        optimizer.step()
    apart = np.abs(trained(ours, weight) - param.detach().numpy()).max()
    print(f"\n{name}: apart {apart:.1e}")
    assert apart < 1e-5


def test_200_steps_of_clipping_follow_pytorch():
    torch = pytest.importorskip("torch")
    weight = np.random.default_rng(1).standard_normal((40, 30)).astype("f4")
    param = torch.nn.Parameter(torch.tensor(weight))
    optimizer = torch.optim.SGD([param], lr=0.1)
    for gradient in gradients(weight.shape):
        param.grad = torch.tensor(gradient)
        torch.nn.utils.clip_grad_norm_([param], 1.0)
        optimizer.step()
    found = trained(optim.sgd(0.1, clip_norm=1.0), weight)
    assert np.abs(found - param.detach().numpy()).max() < 1e-5

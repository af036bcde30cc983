# SPDX-License-Identifier: Apache-2.0
"""A hundred steps beside PyTorch: same weights, same batches, same losses.

Run with ``python -m pytest -m peers``; needs the extra `peers`.
"""

import numpy as np
import pytest

import sparsetrain as st
from tests import small_dlrm

pytestmark = pytest.mark.peers

STEPS = 100
# PyTorch does not round halves by chance.
KINDS = [kind for kind, options in small_dlrm.KINDS.items() if "table_dtype" not in options]
# The names are those of `torch_dlrm.OPTIMIZERS`.
OPTIMIZERS = {
    "sgd": st.optim.sgd(0.1),
    "adagrad": st.optim.adagrad(0.05, eps=1e-10),
    "adagrad that starts above 0": st.optim.adagrad(0.05, eps=1e-8, initial=0.1),
    "adagrad that starts at 1": st.optim.adagrad(0.02, eps=1e-8, initial=1.0),
}


@pytest.fixture(scope="module")
def torch_dlrm():
    return pytest.importorskip("tests.peers.torch_dlrm")


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_weights_follow_pytorch(kind, name, torch_dlrm):
    trainer = small_dlrm.trainer(kind, OPTIMIZERS[name])
    _assert_follows(trainer, torch_dlrm, name, {"kind": kind})


# Among the millions of sums before a ReLU a few are so near 0 that rounding decides their sign.
# Adagrad that starts at 0 makes steps of full size of them, and two runs part.
@pytest.mark.parametrize("name", ["sgd", "adagrad that starts at 1"])
def test_a_full_model_follows_pytorch(name, torch_dlrm):
    trainer = st.Trainer(small_dlrm.full_model(), OPTIMIZERS[name])
    _assert_follows(trainer, torch_dlrm, name, {"rows": small_dlrm.FULL_ROWS})


def _assert_follows(trainer, torch_dlrm, name, options) -> None:
    peer = torch_dlrm.TorchDLRM(trainer.state_dict(), trainer.model.config())
    step = peer.stepper(torch_dlrm.OPTIMIZERS[name])
    losses = np.empty((STEPS, 2))
    for number in range(STEPS):
        batch = small_dlrm.batch(128 if number % 2 else 37, number, **options)
        losses[number] = float(trainer.step(batch)), step(batch)
    apart = np.abs(losses[:, 0] - losses[:, 1]).max()
    what = f"{options.get('kind', 'full')}, {name}"
    print(f"\n{what}: loss {losses[0, 0]:.4f} to {losses[-1, 0]:.4f}, apart {apart:.1e} at most")
    assert apart < 1e-5
    state = trainer.state_dict()
    for array_name, array in peer.arrays().items():
        np.testing.assert_allclose(state[array_name], array, atol=1e-4, err_msg=array_name)


def test_the_batches_hold_duplicates_and_empty_bags():
    assert all(len(np.unique(column)) < 128 for column in small_dlrm.batch(128).ids.T)
    for kind in ("sum", "mean", "weighted"):
        for bags in small_dlrm.batch(128, kind=kind).ids:
            cuts = np.split(bags.ids, bags.offsets[1:-1])
            assert min(map(len, cuts)) == 0 and max(map(len, cuts)) > 2
            assert any(len(np.unique(ids)) < len(ids) for ids in cuts)

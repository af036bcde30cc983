# SPDX-License-Identifier: Apache-2.0
"""Models over fields beside PyTorch: same weights, same batches, same losses and statistics.

Run with ``python -m pytest -m peers``; needs the extra `peers`.
"""

import numpy as np
import pytest

import sparsetrain as st
from tests import small_dlrm
from tests.models.test_field_models import CASES, made

pytestmark = pytest.mark.peers


def _steps(trainer, kind, steps, lr):
    """Take steps on both; return the losses, and the peer."""
    torch = pytest.importorskip("torch")
    from tests.peers.torch_models import TorchModel

    peer = TorchModel(kind, trainer.state_dict(), trainer.model.config())
    optimizer = torch.optim.Adagrad(peer.parameters(), lr, initial_accumulator_value=1.0, eps=1e-8)
    losses = np.empty((steps, 2))
    for number in range(steps):
        batch = small_dlrm.batch(128 if number % 2 else 37, number)
        logits = peer(torch.tensor(batch.dense), torch.tensor(batch.ids.astype(np.int64)))
        labels = torch.tensor(batch.labels.astype(np.float32))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[number] = float(trainer.step(batch)), loss.item()
    return losses, peer


@pytest.mark.parametrize("name", CASES)
def test_losses_of_50_steps_follow_pytorch(name):
    optimizer = st.optim.adagrad(0.02, initial=1.0, eps=1e-8)
    norms = CASES[name][0] not in ("lr", "fm", "fwfm")
    trainer = st.Trainer(made(name, **({"batch_norm": True} if norms else {})), optimizer)
    losses, _ = _steps(trainer, CASES[name][0], 50, 0.02)
    apart = np.abs(losses[:, 0] - losses[:, 1]).max()
    print(f"\n{name}: loss {losses[0, 0]:.4f} to {losses[-1, 0]:.4f}, apart {apart:.1e} at most")
    assert apart < 1e-5


def test_running_statistics_of_200_steps_are_pytorchs():
    trainer = st.Trainer(
        made("deepfm", batch_norm=True), st.optim.adagrad(0.02, initial=1.0, eps=1e-8)
    )
    _, peer = _steps(trainer, "deepfm", 200, 0.02)
    state = trainer.state_dict()
    for name in ("running_mean", "running_var"):
        wanted = peer[f"mlp.norms.0.{name}"].numpy()
        np.testing.assert_allclose(state[f"mlp.norms.0.{name}"], wanted, rtol=1e-5, atol=1e-6)

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


BINARY = {"click": "binary", "bought": "binary"}
OTHERS = {
    "mmoe": lambda: st.models.MMoE(small_dlrm.ROWS, dim=4, labels=BINARY, num_dense=13),
    "esmm": lambda: st.models.ESMM(small_dlrm.ROWS, dim=4, labels=BINARY, num_dense=13),
    "din": lambda: st.models.DIN({"item": 50, "history": 50}, dim=4),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_losses_of_several_labels_and_of_histories_follow_pytorch(kind):
    torch = pytest.importorskip("torch")
    from tests.peers.torch_models import TorchOfLabels

    trainer = st.Trainer(OTHERS[kind](), st.optim.adagrad(0.02, initial=1.0, eps=1e-8))
    peer = TorchOfLabels(kind, trainer.state_dict(), trainer.model.config())
    optimizer = torch.optim.Adagrad(
        peer.parameters(), 0.02, initial_accumulator_value=1.0, eps=1e-8
    )
    apart = []
    for number in range(50):
        batch = _batch(kind, 128 if number % 2 else 37, number)
        labels = torch.tensor(batch.labels).reshape(len(batch), -1)
        ids = batch.ids if kind == "din" else torch.tensor(batch.ids)
        logits = peer(torch.tensor(batch.dense), ids)
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, labels, reduction="none"
        )
        loss = losses.sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        apart.append(abs(float(trainer.step(batch)) - loss.item()))
    print(f"\n{kind}: loss {loss.item():.4f} at the end, apart {max(apart):.1e} at most")
    assert max(apart) < 1e-5


def _batch(kind, size, seed):
    """Rows with two labels, the second of which follows the first; of DIN with a history."""
    rows = small_dlrm.batch(size, seed)
    if kind != "din":
        bought = rows.labels * (rows.dense[:, 1] > 0)
        return st.Batch(rows.dense, rows.ids, np.stack([rows.labels, bought], axis=1))
    items = st.data.Ragged(rows.ids[:, 0], np.arange(size + 1))
    history = small_dlrm.bags(rows.ids[:, 0], 50, np.random.default_rng(seed), "sum")
    return st.Batch(np.empty((size, 0)), [items, history], rows.labels)


def test_running_statistics_of_200_steps_are_pytorchs():
    trainer = st.Trainer(
        made("deepfm", batch_norm=True), st.optim.adagrad(0.02, initial=1.0, eps=1e-8)
    )
    _, peer = _steps(trainer, "deepfm", 200, 0.02)
    state = trainer.state_dict()
    for name in ("running_mean", "running_var"):
        wanted = peer[f"mlp.norms.0.{name}"].numpy()
        np.testing.assert_allclose(state[f"mlp.norms.0.{name}"], wanted, rtol=1e-5, atol=1e-6)

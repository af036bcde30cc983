# SPDX-License-Identifier: Apache-2.0
"""A table with row-sparse gradients and a dense MLP in a PyTorch loop.

pip install 'sparsetrain[torch]' && python examples/torch_loop.py
"""

import torch

import sparsetrain as st
from sparsetrain.torch import RowSparseEmbedding, RowSparseOptimizer

torch.manual_seed(0)
torch.set_num_threads(1)  # idle threads of one pool hold up the other's
ROWS, FEATURES, WIDTH = 100_000, 4, 8
# worth of each id; a row's label is 1 if its ids' worths sum to more than 0
worth = torch.randn(ROWS)
ids = torch.randint(0, 500, (2_000, FEATURES))
labels = (worth[ids].sum(1) > 0).float()

table = RowSparseEmbedding(ROWS, WIDTH)
mlp = torch.nn.Sequential(
    torch.nn.Flatten(),
    torch.nn.Linear(FEATURES * WIDTH, 16),
    torch.nn.ReLU(),
    torch.nn.Linear(16, 1),
)
sparse = RowSparseOptimizer(table.parameters(), st.optim.adagrad(0.1))
dense = torch.optim.Adam(mlp.parameters(), 0.01)
for epoch in range(6):
    for first in range(0, len(ids), 100):
        batch = slice(first, first + 100)
        sparse.zero_grad(), dense.zero_grad()
        logits = mlp(table(ids[batch])).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, labels[batch]
        )
        # the table's gradient is of the rows that were looked up
        loss.backward()
        sparse.step(), dense.step()
    print(f"epoch {epoch + 1}: loss of the last batch {loss.item():.3f}")

# SPDX-License-Identifier: Apache-2.0
"""A GRU4Rec PyTorch module trained with row-sparse gradients, and back.

pip install 'sparsetrain[torch]' && python examples/torch_gru4rec.py
"""

import torch
from torch import nn

import sparsetrain as st

torch.manual_seed(0)
ITEMS, WIDTH, LENGTH = 50, 32, 6


class GRU4Rec(nn.Module):
    """Scores of all items after a sequence of items."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.states = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.scores = nn.Linear(WIDTH, ITEMS)

    def forward(self, seen):
        # (B, ITEMS)
        return self.scores(self.states(self.items(seen))[0][:, -1])


first, step = (
    torch.randint(0, ITEMS, (2_000, 1)),
    torch.randint(1, 4, (2_000, 1)),
)
# around a ring, each in its own steps
walks = (first + step * torch.arange(LENGTH + 1)) % ITEMS
seen, following = walks[:, :-1], walks[:, -1]
module = GRU4Rec()
example = slice(0, 100)
loss = nn.functional.cross_entropy
model = st.from_torch(module, (seen[example],), (following[example],), loss)
program = st.value_and_grad(model.export(), "loss", model.trainable)
optimizer = st.optim.adam(0.01)
params = model.initialize()
state = optimizer.init(params)
for begin in range(0, 10 * len(seen), 100):
    batch = slice(begin % len(seen), begin % len(seen) + 100)
    value, gradients = program(
        params, model.inputs(seen[batch], following[batch])
    )
    optimizer.apply_(params, gradients, state, loss=value)
model.to_torch_(params)
found = (module(seen).argmax(1) == following).float().mean().item()
print(f"the next item is first for {found:.0%} of the walks")

# SPDX-License-Identifier: Apache-2.0
"""Ten items for each new user, from the user's choices so far (SASRec).

python examples/new_users.py
"""

import numpy as np
import pandas as pd

import sparsetrain as st


def ratings(users: range, each: int) -> pd.DataFrame:
    """Draw ratings like MovieLens's; 90 % match the user's taste."""
    rng = np.random.default_rng(users.start)
    user = np.repeat(users, each)
    sort = np.where(
        rng.random(len(user)) < 0.9, user % 5, rng.integers(0, 5, len(user))
    )
    film = sort + 5 * rng.integers(0, 30, len(user))
    return pd.DataFrame(
        {"user": user, "item": film, "timestamp": np.arange(len(user))}
    )


log = st.data.Interactions.read(ratings(range(300), 20))
split = log.leave_one_out(st.models.SASRec.training_rows)
encoder = split.encoder()
model = st.models.SASRec.for_encoder(encoder, dim=32, dropout=0.2)
trainer = st.Trainer(
    model, st.optim.adam(0.005, mode="exact"), encoder=encoder
)
trainer.fit(split.train, epochs=10, batch_size=128, progress=None)

new = st.data.Interactions.read(ratings(range(1_000, 1_003), 8)).queries()
ids, scores = trainer.recommend(new, k=10)
films = encoder.values("item")
found = [[films[row] for row in row_ids if row >= 0] for row_ids in ids]
for user, items in zip(new["user"].to_pylist(), found, strict=True):
    print(f"user {user}: {items}")

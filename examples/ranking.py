# SPDX-License-Identifier: Apache-2.0
"""Items ranked for each user: matrix factorization with the BPR loss.

python examples/ranking.py
"""

import numpy as np
import pandas as pd

import sparsetrain as st


def choices(
    users: int = 200, items: int = 60, each: int = 12
) -> pd.DataFrame:
    """Draw choices: 90 % of the items match the user's taste."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(users), each)
    sort = np.where(
        rng.random(len(user)) < 0.9, user % 3, rng.integers(0, 3, len(user))
    )
    item = sort + 3 * rng.integers(0, items // 3, len(user))
    return pd.DataFrame(
        {"user": user, "item": item, "time": np.arange(len(user))}
    )


log = st.data.Interactions.read(choices())
# a row for each choice
split = log.leave_one_out(st.models.BPR.training_rows)
encoder = split.encoder()
model = st.models.BPR.for_encoder(encoder, dim=8)
trainer = st.Trainer(
    model, st.optim.adam(0.02, mode="exact"), encoder=encoder
)
trainer.fit(split.train, epochs=20, batch_size=256, progress=None)
found = trainer.evaluate(split.test)
print(
    f"the wanted item is in the top ten for {found['hr@10']:.0%};"
    " by chance for 17%"
)
ids, scores = trainer.recommend(split.test, k=3)
values = encoder.values("item")
# -1 stands where fewer than k items are left.
print("for the first user:", [values[row] for row in ids[0] if row >= 0])

# SPDX-License-Identifier: Apache-2.0
"""A custom model with two labels, extended by a day of new users and items.

python examples/two_labels.py
"""

import numpy as np
import pandas as pd
from tvm.relax.frontend import nn

import sparsetrain as st


class Bilinear(st.models.ClickModel):
    """One product of users' and items' vectors for each label."""

    def __init__(self, rows, dim=8, num_dense=0, **rest):
        super().__init__(rows, dim, num_dense, **rest)
        self.last = nn.Linear(dim, len(self.labels))

    def forward(self, dense, embedded):
        # (B, D)
        user, item = (
            nn.op.squeeze(x, 1) for x in nn.op.split(embedded, 2, axis=1)
        )
        return self.last(user * item)  # (B, 2)


def day(number: int, users: int, count: int = 2_000) -> pd.DataFrame:
    """Draw a day's visits: click, and seconds on the page."""
    rng = np.random.default_rng(number)
    user, item = rng.integers(0, users, count), rng.integers(0, 20, count)
    fits = user % 2 == item % 2
    stay = np.where(fits, 3.0, 1.0) + rng.normal(0, 0.1, count)
    return pd.DataFrame(
        {"user": user, "item": item, "click": fits * 1, "stay": stay}
    )


schema = st.data.Schema(
    categories=("user", "item"), labels={"click": "binary", "stay": "real"}
)
encoder = st.data.Encoder.fit(day(1, 40), schema=schema, min_count=1)
model = Bilinear.for_encoder(encoder)
trainer = st.Trainer(model, st.optim.adagrad(0.1), encoder=encoder)
trainer.fit(day(1, 40), epochs=10, progress=None)
# rows for 20 new users
trainer = trainer.extended(encoder.extended(day(2, 60)))
trainer.fit(day(2, 60), epochs=10, progress=None)
found = trainer.evaluate(day(3, 60))
print({name: round(found[name], 3) for name in ("click.auc", "stay.rmse")})

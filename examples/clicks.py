# SPDX-License-Identifier: Apache-2.0
"""Click probabilities from a frame; the roles of its columns are inferred.

python examples/clicks.py
"""

import numpy as np
import pandas as pd

import sparsetrain as st


def impressions(count: int = 4_000) -> pd.DataFrame:
    """Draw impressions like Avazu's: click, time, site, device, price."""
    rng = np.random.default_rng(0)
    site, device = rng.integers(0, 50, count), rng.integers(0, 300, count)
    seconds = np.sort(rng.integers(0, 864_000, count))
    times = pd.Timestamp("2014-10-21") + pd.to_timedelta(seconds, "s")
    chance = 0.1 + 0.6 * (site % 3 == 0) + 0.2 * (times.hour > 18)
    columns = {
        "site": [f"s{n:04x}" for n in site],
        "device": device,
        "price": rng.random(count),
    }
    return pd.DataFrame(
        {"click": rng.random(count) < chance, "hour": times, **columns}
    )


log = impressions()
train, test = log[:3_500], log[3_500:]
schema = st.data.infer(train, "click").schema
encoder = st.data.Encoder.fit(train, schema=schema)
model = st.models.DCNv2.for_encoder(encoder, dim=8)
trainer = st.Trainer(model, st.optim.adagrad(0.05), encoder=encoder)
trainer.fit(train, epochs=3, progress=None)
found = trainer.evaluate(test)
print(f"AUC {found['auc']:.3f}")
print(f"first rows: {trainer.predict(test[:3])}")

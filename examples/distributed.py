# SPDX-License-Identifier: Apache-2.0
"""One model trained by several processes; each holds a part of every table.

    pip install 'sparsetrain[mpi]' mpich
    mpiexec -n 2 python -m mpi4py examples/distributed.py

One, two or four processes give the same weights to the bit.
"""

import numpy as np

import sparsetrain as st


def rows(count: int = 4_000) -> dict[str, np.ndarray]:
    """Draw rows in Criteo's naming, the same in every process."""
    rng = np.random.default_rng(0)
    category, number = (
        rng.integers(0, 50, count),
        rng.gamma(1.0, 4.0, count),
    )
    probability = 1 / (1 + np.exp(2 - category / 25 - number / 10))
    label = (rng.random(count) < probability).astype(int)
    return {
        "label": label,
        "I1": number,
        "C1": category,
        "C2": rng.integers(0, 9, count),
    }


data = rows()
encoder = st.data.Encoder.fit(data, min_count=1)
model = st.models.DLRM.for_encoder(encoder, dim=8, bottom=(16,), top=(16,))
# how a batch is cut decides the last bits
parallel = st.parallel.mpi(parts=4)
trainer = st.Trainer(
    model, st.optim.adagrad(0.05), encoder=encoder, parallel=parallel
)
trainer.fit(data, epochs=2, batch_size=128, progress=None)
scores = trainer.evaluate(data)
if trainer.parallel.rank == 0:
    print(trainer.parallel)
    print(scores)

# SPDX-License-Identifier: Apache-2.0
"""Train a DLRM with the loop in view, on the library's public names.

    python examples/dlrm/train.py TRAIN.parquet TEST.parquet

Without arguments it makes synthetic click logs first. `sparsetrain train`
does the same and more; this file is for reading, and for taking apart.
"""

import sys
import tempfile
import time
from pathlib import Path

import sparsetrain as st

# Model and training: the names and values of the reference DLRM's small
# configuration.
dim = 16  # width of the embeddings
bottom, top = (64,), (64,)  # hidden widths of the two MLPs
batch_size = 128
learning_rate = 0.02
min_count = 5  # rarer ids share one row
seed = 0


def synthetic_files(folder: Path, rows: int = 100_000) -> tuple[Path, Path]:
    """Write click logs of known best AUC; return train and test file."""
    logs = st.data.SyntheticCriteo(seed=seed)
    train, test = folder / "train.parquet", folder / "test.parquet"
    logs.write(train, rows)
    truth = logs.write(test, rows // 5, first_chunk=1000)
    print(
        "synthetic rows: the best possible AUC on the test file"
        f" is {truth.auc:.4f}"
    )
    return train, test


def main(train: Path, test: Path) -> None:
    # Columns become numbers by rules learnt on the training data alone.
    encoder = st.data.Encoder.fit(train, min_count=min_count)
    dataset = st.data.Dataset(train, encoder)
    print(dataset.layout)

    # The model is a Relax module; its gradient is a second module with
    # row-sparse tables.
    model = st.models.DLRM(
        rows=encoder.rows,
        dim=dim,
        bottom=bottom,
        top=top,
        num_dense=encoder.num_dense,
    )
    program = st.value_and_grad(model.export(), "loss").compile()
    # on a GPU, if it runs there
    params = program.place(model.initialize(seed))
    optimizer = st.optim.adagrad(learning_rate)
    state = optimizer.init(params)

    began, rows, mean_loss = time.perf_counter(), 0, 0.0
    for step, batch in enumerate(dataset.batches(batch_size, seed=seed)):
        loss, gradients = program(params, model.inputs(batch))
        # of a table, only the touched rows are written
        optimizer.apply_(params, gradients, state)
        rows += len(batch)
        mean_loss += (float(loss.numpy()) - mean_loss) / min(step + 1, 200)
        if step == 0:
            print(gradients["embeddings.width16.weight"])
        if step % 200 == 0:
            rate = rows / (time.perf_counter() - began)
            print(
                f"step {step:5d}  loss {mean_loss:.4f}  {rate:,.0f} rows/s"
            )

    # Scoring uses the same parameters through the module's other function.
    logits = st.Program(model.export(), "logits")
    metrics = st.metrics.ClickMetrics()
    for batch in st.data.Dataset(test, encoder).batches(4096):
        metrics.update(
            logits(params, model.inputs(batch)).numpy()[:, 0], batch.labels
        )
    scores = metrics.result()
    print(f"test AUC {scores['auc']:.4f}, logloss {scores['logloss']:.4f}")
    print(f"a constant's logloss {scores['constant_logloss']:.4f}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(*synthetic_files(Path(folder)))

# SPDX-License-Identifier: Apache-2.0
"""Time of one training step of SASRec and BERT4Rec, next to PyTorch on the same machine.

Both arms train on the same sequences: ours without padding, PyTorch padded to the longest allowed
length, as its implementations do. BERT4Rec's softmax is over all items. Each arm has a process of
its own; they take turns.

    python benchmarks/sequences.py --model sasrec --peer-python peers/bin/python
    python benchmarks/sequences.py --model bert4rec --sequences amazon_games.txt

A file of sequences has a line "user item" for each event, in the order of time. Without one, the
lengths are geometric with a mean of 9, as those of Amazon's games.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

LENGTH, BATCH, ITEMS = 50, 128, 23_715


def sequences(path: str | None) -> list[np.ndarray]:
    """Return item ids from 1 on, in order, of each user with three items or more."""
    if path is None:
        rng = np.random.default_rng(0)
        lengths = 3 + rng.geometric(1 / 6, 20_000)
        return [rng.integers(1, ITEMS + 1, n) for n in lengths]
    users, items = np.loadtxt(path, dtype=np.int64).T
    order = np.argsort(users, kind="stable")
    found = np.split(items[order], np.flatnonzero(np.diff(users[order])) + 1)
    return [ids for ids in found if len(ids) >= 3]


def batches(every: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Yield batches of users for ever, each with its last LENGTH + 1 items."""
    rng = np.random.default_rng(1)
    while True:
        yield [every[n][-LENGTH - 1 :] for n in rng.integers(0, len(every), BATCH)]


def ours(model: str, threads: int) -> Callable[[list[np.ndarray]], None]:
    """Return a step of this package."""
    import sparsetrain as st

    st.set_num_threads(threads)
    cls = {"sasrec": st.models.SASRec, "bert4rec": st.models.BERT4Rec}[model]
    made = cls({"item": ITEMS + 1}, dim=50, heads=1 if model == "sasrec" else 2, length=LENGTH)
    trainer = st.Trainer(made, st.optim.adam(1e-3), target="cpu")

    def step(users: list[np.ndarray]) -> None:
        history = np.concatenate([ids[:-1] for ids in users])
        offsets = np.cumsum([0, *(len(ids) - 1 for ids in users)])
        last = np.array([ids[-1] for ids in users])
        bags = [
            st.data.Ragged(history, offsets),
            st.data.Ragged(last, np.arange(len(last) + 1)),
        ]
        float(trainer.step(st.Batch(np.empty((len(users), 0)), bags)))

    return step


def peer(model: str, threads: int) -> Callable[[list[np.ndarray]], None]:
    """Return a step of PyTorch, eager."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    causal, heads = model == "sasrec", 1 if model == "sasrec" else 2
    rows = ITEMS + 2  # padding and a mask
    length = LENGTH if causal else LENGTH + 1

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.item = nn.Embedding(rows, 50, padding_idx=0)
            self.place = nn.Embedding(length, 50)
            self.drop = nn.Dropout(0.5 if causal else 0.2)
            rate = self.drop.p
            layer = nn.TransformerEncoderLayer(
                50, heads, 50, rate, "relu", batch_first=True, norm_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.norm = nn.LayerNorm(50)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.drop(self.item(ids) * 50**0.5 + self.place.weight)
            hidden = torch.triu(torch.ones(length, length, dtype=torch.bool), 1) if causal else None
            padded = None if causal else ids == 0  # rows are padded at the end: causal needs none
            return self.norm(self.encoder(x, mask=hidden, src_key_padding_mask=padded))

    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    rng = np.random.default_rng(2)

    def padded(parts: list[np.ndarray]) -> np.ndarray:
        out = np.zeros((len(parts), length), np.int64)
        for row, ids in zip(out, parts, strict=True):
            row[: len(ids)] = ids
        return out

    def sasrec(users: list[np.ndarray]) -> torch.Tensor:
        history, wanted = (torch.from_numpy(padded(p)) for p in zip_parts(users))
        negative = torch.from_numpy(rng.integers(1, ITEMS + 1, history.shape))
        x = net(history)
        logits = [(x * net.item(ids)).sum(-1)[wanted != 0] for ids in (wanted, negative)]
        loss = nn.functional.binary_cross_entropy_with_logits
        return loss(logits[0], torch.ones_like(logits[0])) + loss(
            logits[1], torch.zeros_like(logits[1])
        )

    def bert4rec(users: list[np.ndarray]) -> torch.Tensor:
        ids = padded(users)
        chosen = (rng.random(ids.shape) < 0.2) & (ids != 0)
        shown = torch.from_numpy(np.where(chosen, ITEMS + 1, ids))
        x = net(shown)[torch.from_numpy(chosen)]
        return nn.functional.cross_entropy(x @ net.item.weight.T, torch.from_numpy(ids[chosen]))

    def step(users: list[np.ndarray]) -> None:
        optimizer.zero_grad()
        loss = (sasrec if causal else bert4rec)(users)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def zip_parts(users: list[np.ndarray]) -> list[list[np.ndarray]]:
    """Return the items of each user but the last, and but the first."""
    return [[ids[:-1] for ids in users], [ids[1:] for ids in users]]


def work(options: argparse.Namespace) -> None:
    """Take steps as the parent asks: read a number of them, print milliseconds of each."""
    step = (ours if options.arm == "ours" else peer)(options.model, options.threads)
    source = batches(sequences(options.sequences))
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            users = next(source)
            begin = time.perf_counter()
            step(users)
            times.append(1e3 * (time.perf_counter() - begin))
        print(json.dumps(times), flush=True)


def main() -> None:
    """Measure both arms in turns and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["sasrec", "bert4rec"], default="sasrec")
    parser.add_argument("--sequences", metavar="FILE")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of an arm in a round")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter with PyTorch")
    parser.add_argument("--arm", choices=["ours", "torch"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        return work(options)
    given = ["--model", options.model, "--threads", str(options.threads)]
    given += ["--sequences", options.sequences] if options.sequences else []
    arms = {
        name: subprocess.Popen(
            [python, __file__, "--arm", name, *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, python in {"ours": sys.executable, "torch": options.peer_python}.items()
    }
    times: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(options.rounds + 1):
        for name, process in arms.items():
            assert process.stdin and process.stdout
            process.stdin.write(f"{options.steps}\n")
            process.stdin.flush()
            found = json.loads(process.stdout.readline())
            times[name] += found if number else []  # the first round warms up
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, found in times.items():
        low, high = np.percentile(found, [10, 90])
        print(f"{name:6} {medians[name]:8.2f} ms   10 % {low:.2f}, 90 % {high:.2f}")
    print(f"PyTorch takes {medians['torch'] / medians['ours']:.2f} times as long")
    for process in arms.values():
        process.stdin.close()  # type: ignore[union-attr]
        process.wait()


if __name__ == "__main__":
    main()

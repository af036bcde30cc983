# SPDX-License-Identifier: Apache-2.0
"""Models that rank on a preset split, trained by the command's own path, beside PyTorch's.

    python -m benchmarks.ranking FOLDER --write      # train.txt and test.txt by a generator
    python -m benchmarks.ranking FOLDER --model mf   # or lightgcn
    python -m benchmarks.ranking FOLDER --model mf --by sparsetrain --epochs 20 --scores

Both train on the same pairs in batches of one size, by Adam with one rate: matrix factorization by
the cosine contrastive loss with negatives that a batch shares, or LightGCN by pairs. Epochs take
turns; the scores of ours are also computed by NumPy alone from the two files and the vectors.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

USERS, ITEMS, EVENTS, GROUPS = 30_000, 40_000, 810_000, 200
BLOCK = 500  # users scored at once by NumPy
K, DIM, LAYERS, MARGIN, WEIGHT = 20, 64, 3, 0.4, 150
# Model -> rows of a batch, negatives, rate.
SETTINGS = {"mf": (1024, 512, 3e-3), "lightgcn": (8192, 1, 5e-3)}


def write(folder: Path) -> None:
    """Write users with three tastes each, in groups of items whose popularity is a power law."""
    rng = np.random.default_rng(7)
    chance = rng.permutation(1 / np.arange(1, ITEMS + 1) ** 0.8)
    group = rng.integers(0, GROUPS, ITEMS)
    pools = [np.flatnonzero(group == g) for g in range(GROUPS)] + [np.arange(ITEMS)]
    steps = [np.cumsum(chance[pool]) / chance[pool].sum() for pool in pools]
    counts = np.maximum(rng.lognormal(2.75, 0.75, USERS).clip(6, 600), 6)
    counts = np.round(counts * 1.12 * EVENTS / counts.sum()).astype(int)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "train.txt", "w") as train, open(folder / "test.txt", "w") as test:
        for user, count in enumerate(counts):
            tastes = np.r_[rng.integers(0, GROUPS, 3), GROUPS]  # the last: all items
            chosen = tastes[rng.integers(0, 4, count)]
            items = [pools[t][np.searchsorted(steps[t], rng.random())] for t in chosen]
            own = rng.permutation(np.unique(items))
            for file, part in (
                (test, own[: len(own) // 5 or 1]),
                (train, own[len(own) // 5 or 1 :]),
            ):
                file.write(" ".join(map(str, [user, *part])) + "\n")


def _rows(file: Path) -> list[np.ndarray]:
    """Return a user and its items for each line."""
    return [np.array(line.split(), int) for line in file.read_text().splitlines()]


def scores_by_numpy(folder: Path, users: Any, items: Any) -> tuple[float, float]:
    """Recall and NDCG at K of all users, by vectors of users and items in the files' numbers."""
    train, test = (_rows(folder / name) for name in ("train.txt", "test.txt"))
    discounts = 1 / np.log2(np.arange(2, K + 2))
    recalls, gains, block = [], [], np.empty((0, 0))
    for number, ((_, *seen), (_, *wanted)) in enumerate(zip(train, test, strict=True)):
        if number % BLOCK == 0:
            block = users[[row[0] for row in train[number : number + BLOCK]]] @ items.T
        scores = block[number % BLOCK]
        scores[seen] = -np.inf
        best = np.argpartition(-scores, K)[:K]
        hits = np.isin(best[np.argsort(-scores[best], kind="stable")], wanted)
        recalls.append(hits.sum() / len(wanted))
        gains.append(discounts[hits].sum() / discounts[: len(wanted)].sum())
    return float(np.mean(recalls)), float(np.mean(gains))


def ours(folder: Path, model: str) -> tuple[Callable[[], float], Callable[[], dict[str, Any]]]:
    """Return what trains an epoch and tells its seconds, and what scores."""
    import sparsetrain as st

    batch, negatives, lr = SETTINGS[model]
    train, test = (st.data.Interactions.read(str(folder / f"{n}.txt")) for n in ("train", "test"))
    split = train.split_given(test=test, each="item")
    encoder = split.encoder()
    rows = dict(zip(encoder.columns, encoder.rows, strict=True))
    if model == "mf":
        made = st.models.BPR(
            rows, DIM, history="history", loss="ccl", negatives=negatives, shared=True
        )
    else:
        made = st.models.LightGCN(rows, len(train), DIM, LAYERS, history="history", decay=1e-4)
    trainer = st.Trainer(made, st.optim.adam(lr), encoder=encoder)

    def epoch() -> float:
        return float(trainer.fit(split.train, batch_size=batch, progress=None)["seconds"])

    def scores() -> dict[str, Any]:
        found = trainer.evaluate(split.test, k=K)
        vectors = trainer.query_vectors(split.test), trainer.item_vectors()
        known = [np.array(encoder.values(n)[2:], int) for n in ("user", "item")]
        users, items = np.zeros((USERS, DIM)), np.zeros((ITEMS, DIM))
        order = split.test["user"].to_numpy()
        users[order], items[known[1]] = vectors[0], vectors[1][2 : 2 + len(known[1])]
        told = f"{found[f'recall@{K}']:.6f} {found[f'ndcg@{K}']:.6f}"
        by_numpy = " ".join(f"{each:.6f}" for each in scores_by_numpy(folder, users, items))
        pop = f"{found[f'pop_recall@{K}']:.6f} {found[f'pop_ndcg@{K}']:.6f}"
        return {"recall ndcg": told, "by NumPy": by_numpy, "Pop": pop}

    return epoch, scores


def theirs(folder: Path, model: str, steps: int) -> Callable[[], float]:
    """Return what takes steps of the same model in PyTorch and tells the seconds of an epoch."""
    import torch
    from torch.nn import functional as F

    batch, negatives, lr = SETTINGS[model]
    rows = _rows(folder / "train.txt")
    user = torch.tensor(np.concatenate([np.full(len(r) - 1, r[0]) for r in rows]))
    item = torch.tensor(np.concatenate([r[1:] for r in rows]))
    deviation = 0.01 if model == "mf" else 0.1
    p, q = (torch.nn.Parameter(torch.randn(n, DIM) * deviation) for n in (USERS, ITEMS))
    # As ours, Adam moves the rows of a batch for matrix factorization, and all for a graph.
    made = torch.optim.SparseAdam if model == "mf" else torch.optim.Adam
    optimizer = made([p, q], lr)
    degrees = [torch.bincount(ids, minlength=n) for ids, n in ((user, USERS), (item, ITEMS))]
    weights = 1 / torch.sqrt(degrees[0][user] * degrees[1][item])
    places = torch.stack([user, item + USERS])
    both = torch.cat([places, places.flip(0)], dim=1)
    size = (USERS + ITEMS,) * 2
    graph = torch.sparse_coo_tensor(both, torch.cat([weights] * 2), size).coalesce().to_sparse_csr()

    def contrastive(u: Any, i: Any) -> Any:
        drawn = torch.randint(ITEMS, (negatives,))
        rows = (F.embedding(ids, x, sparse=True) for ids, x in ((u, p), (i, q), (drawn, q)))
        one, yes, no = map(F.normalize, rows)
        over = F.relu(one @ no.T - MARGIN).mean(dim=1)
        return (1 - (one * yes).sum(dim=1) + WEIGHT * over).mean()

    def pairs(u: Any, i: Any) -> Any:
        x = torch.cat([p, q])
        total = x
        for _ in range(LAYERS):
            x = graph @ x
            total = total + x
        users, items = (total / (LAYERS + 1)).split([USERS, ITEMS])
        j = torch.randint(ITEMS, u.shape)
        margin = (users[u] * (items[i] - items[j])).sum(dim=1)
        decay = sum((each**2).sum() for each in (p[u], q[i], q[j])) / (2 * len(u))
        return F.softplus(-margin).mean() + 1e-4 * decay

    loss_of = contrastive if model == "mf" else pairs

    def epoch() -> float:
        parts, begin = torch.randperm(len(user)).split(batch), time.perf_counter()
        for part in parts[:steps]:
            optimizer.zero_grad()
            loss_of(user[part], item[part]).backward()
            optimizer.step()
        return (time.perf_counter() - begin) / min(steps, len(parts)) * len(parts)

    return epoch


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train in this process, and return seconds of epochs and the peak of memory, in MB."""
    if options.by == "torch":
        epoch, scores = theirs(options.folder, options.model, options.steps), None
    else:
        epoch, scores = ours(options.folder, options.model)
    epoch()  # which compiles, and wakes threads
    seconds = [epoch() for _ in range(options.epochs - 1)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    told = scores() if scores is not None and options.scores else {}
    return {"seconds": seconds, "peak_mb": peak, **told}


def main() -> None:
    """Write the data, or train one model on both sides in turns, each in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranking", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--model", choices=SETTINGS, default="mf")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--by", choices=("sparsetrain", "torch"), help="one side alone, as JSON")
    parser.add_argument("--steps", type=int, default=30, help="of PyTorch, for an epoch's time")
    parser.add_argument("--scores", action="store_true", help="also those by NumPy: a minute")
    options = parser.parse_args()
    if options.write:
        write(options.folder)
    elif options.by:
        print(json.dumps(measure(options)))
    else:
        found: dict[str, list[dict[str, Any]]] = {"sparsetrain": [], "torch": []}
        for _ in range(options.rounds):
            for by, runs in found.items():
                command = [sys.executable, "-m", "benchmarks.ranking", *sys.argv[1:], "--by", by]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                runs.append(json.loads(done.stdout.splitlines()[-1]))
        for by, runs in found.items():
            own = [second for run in runs for second in run["seconds"]]
            print(
                f"{options.model}, {by}: {np.median(own):.2f} s an epoch ({min(own):.2f} to "
                f"{max(own):.2f}), {max(run['peak_mb'] for run in runs):,} MB at most"
            )


if __name__ == "__main__":
    main()

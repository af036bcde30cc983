# SPDX-License-Identifier: Apache-2.0
"""Time of a step with each variant of the compiler and its kernels, beside its absence.

Each arm compiles the same model with one variant left out: a pass does nothing, a kernel gives way
to the general one. Arms are trainers of one process that take their steps in turns on the same
batches; a ratio is that of an arm to the whole compiler, turn by turn. A variant below 3 % of a
step does not earn its lines.

    python benchmarks/ablate.py --model kaggle --precision bf16
"""

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np
import tvm
from harness.batches import make_batches
from harness.configs import CONFIGS
from harness.options import available_threads, positive
from sequences import ITEMS, LENGTH
from sequences import batches as sequences_of
from tvm import relax
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain.compiler.schedule.row_product import chunk_prefetch
from sparsetrain.kernels.builder import Prefetch
from sparsetrain.models.interaction import selection as interactions
from sparsetrain.runtime import compiling

# The modules: their packages have functions of these names.
cpu = importlib.import_module("sparsetrain.backends.cpu.schedule")
pipeline = importlib.import_module("sparsetrain.compiler.schedule.pipeline")
LIMIT = 1_000_000  # rows of a table, so that nine trainers fit into memory


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing, in place of a function that adds to a schedule."""


@tvm.transform.module_pass(opt_level=0, name="NoPass")
class NoPass:
    """A pass that does nothing."""

    def transform_module(self, module: Any, _context: Any) -> Any:
        """Return the module as it is."""
        return module


def interaction_by_products(dense: Any, embeddings: Any) -> Any:
    """The dot interaction as a product of every sample's matrix and a `take` of its triangle."""
    vectors = nn.op.concat([nn.op.unsqueeze(dense, 1), embeddings], dim=1)
    count = int(vectors.shape[1])
    gram = nn.op.matmul(vectors, nn.op.permute_dims(vectors, [0, 2, 1]))
    row, column = np.tril_indices(count, -1)
    flat = nn.op.reshape(gram, (-1, count * count))._expr
    pairs = relax.op.take(flat, relax.const((row * count + column).astype("int32")), axis=1)
    return nn.op.concat([dense, nn.op.wrap_nested(pairs, "pairs")], dim=1)


# Variant -> who has it, its name, and what takes its place.
VARIANTS: dict[str, tuple[Any, str, Any] | None] = {
    "nothing": None,
    "nothing, again": None,  # how much of a ratio is noise
    "products of gradients": (cpu, "TakeRowProducts", NoPass),
    "prefetches of those": (chunk_prefetch, "_prefetch", _nothing),
    "prefetched rows of tables": (Prefetch, "line", _nothing),
    "elided argument checks": (pipeline, "ElideArgumentChecks", NoPass),
    "folded permutations": (cpu, "FoldPermutationIntoMatmul", NoPass),
    "own interaction": (interactions, "dot_interaction", interaction_by_products),
}


def left_out(variant: str) -> AbstractContextManager[Any]:
    """Leave a variant out for what is compiled within the context."""
    _forget_kernels()
    found = VARIANTS[variant]
    return nullcontext() if found is None else patch.object(*found)


@contextmanager
def kernels_into(found: set[str]) -> Iterator[None]:
    """Collect the texts of the kernels that are compiled, to see that a variant acts."""
    passes = compiling._run_passes

    def collect(*arguments: Any) -> Any:
        module = passes(*arguments)
        for function in module.functions.values():
            if type(function).__name__ == "PrimFunc":
                found.add(function.without_attr("global_symbol").script())
        return module

    with patch.object(compiling, "_run_passes", collect):
        yield


def _forget_kernels() -> None:
    """Clear every cache of the package: a kernel that is made already is not made anew."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("sparsetrain"):
            for value in [*vars(module).values()]:
                getattr(value, "cache_clear", _nothing)()


def click_model(name: str, size: int, count: int) -> tuple[Any, list[Any]]:
    """A DLRM of `harness.configs`, its tables cut, and batches for it."""
    config = CONFIGS[name]
    rows = [min(rows, LIMIT) for rows in config.rows]
    found = make_batches(config, size, count)
    made = [st.Batch(b.dense, b.ids % rows, b.labels) for b in found]
    model = st.models.DLRM(
        rows, config.dim, config.bottom, config.top, num_dense=13, **config.interaction
    )
    return model, made


def sasrec(size: int, count: int) -> tuple[Any, list[Any]]:
    """SASRec as `sequences.py` has it, and batches of users."""

    def batch(users: list[Any]) -> st.Batch:
        history = np.concatenate([ids[:-1] for ids in users])
        offsets = np.cumsum([0, *(len(ids) - 1 for ids in users)])
        last = np.array([ids[-1] for ids in users])
        each = np.arange(len(last) + 1)
        bags = [st.data.Ragged(history, offsets), st.data.Ragged(last, each)]
        return st.Batch(np.empty((len(users), 0)), bags)

    def users() -> Iterator[list[Any]]:
        source = sequences_of("sasrec", None)
        while True:
            yield [user for _ in range(max(1, size // 128)) for user in next(source)][:size]

    source = users()
    model = st.models.SASRec({"item": ITEMS + 1}, dim=50, heads=1, length=LENGTH)
    return model, [batch(next(source)) for _ in range(count)]


def autoint(size: int, count: int) -> tuple[Any, list[Any]]:
    """AutoInt of 39 categories, and batches of random ids."""
    draw = np.random.default_rng(0)

    def batch() -> st.Batch:
        ids = draw.integers(0, 10_000, (size, 39)).astype("int32")
        return st.Batch(np.empty((size, 0), "float32"), ids, draw.integers(0, 2, size))

    model = st.models.AutoInt([10_000] * 39, dim=16, num_dense=0)
    return model, [batch() for _ in range(count)]


MAKERS = {"sasrec": sasrec, "autoint": autoint}


def measure(options: argparse.Namespace, size: int) -> dict[str, list[float]]:
    """Milliseconds of each arm's steps, in turns."""
    st.set_num_threads(options.threads)
    make = MAKERS.get(options.model)
    arms: dict[str, Any] = {}
    whole: set[str] = set()
    for variant in options.variants:
        optimizer = st.optim.adam(1e-3) if make else st.optim.sgd(0.01)
        begin = time.perf_counter()
        with left_out(variant), kernels_into(kernels := set()):
            model, batches = make(size, 8) if make else click_model(options.model, size, 8)
            trainer = st.Trainer(model, optimizer, target="cpu", precision=options.precision)
            float(trainer.step(batches[0]))
        seconds, whole = time.perf_counter() - begin, whole or kernels
        others = f"{len(kernels - whole)} of {len(kernels)} kernels are others"
        print(f"{variant}: first step {seconds:.1f} s, {others}", flush=True)
        arms[variant] = trainer
    times: dict[str, list[float]] = {variant: [] for variant in arms}
    names = [*arms]
    for turn in range(options.steps + 4):
        for variant in names[turn % len(names) :] + names[: turn % len(names)]:
            trainer = arms[variant]
            begin = time.perf_counter()
            float(trainer.step(batches[turn % 8]))
            if turn >= 4:
                times[variant].append(1e3 * (time.perf_counter() - begin))
    return times


def main() -> None:
    """Measure and print a table for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=(*MAKERS, *CONFIGS), default="kaggle")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument("--batch", type=positive, nargs="+", default=[128, 2048])
    parser.add_argument("--steps", type=positive, default=60, help="of each arm")
    parser.add_argument("--threads", type=positive, default=available_threads())
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=[*VARIANTS])
    options = parser.parse_args()
    os.environ["SPARSETRAIN_CACHE"] = ""  # two arms may not share what one has compiled
    for size in options.batch:
        times = measure(options, size)
        whole = times["nothing"]
        print(f"\n{options.model}, {options.precision}, {size} rows, {options.threads} threads")
        print("| left out | ms | p10 | p90 | ratio |\n| --- | --- | --- | --- | --- |")
        for variant, found in times.items():
            ratio = statistics.median(a / b for a, b in zip(found, whole, strict=True))
            low, *_, high = statistics.quantiles(found, n=10)
            middle = statistics.median(found)
            print(f"| {variant} | {middle:.2f} | {low:.2f} | {high:.2f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()

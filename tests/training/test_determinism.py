# SPDX-License-Identifier: Apache-2.0
"""The same bits for every number of threads, and when run again.

TVM reads how many threads there may be when it starts, so this file is run as a process of its own,
and sets the number of those that work as it goes.
"""

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import tvm

import sparsetrain as st
from sparsetrain.compiler import schedule
from sparsetrain.embedding.take import take_as_lookup
from sparsetrain.runtime import host
from sparsetrain.runtime.host import host_target
from tests import small_dlrm
from tests.helpers import slow_except

# What is trained: a model, and how its batches are made.
RUNS = {
    "a full model of single ids": (small_dlrm.full_model, {"rows": small_dlrm.FULL_ROWS}),
    "bags with weights": (lambda: small_dlrm.model("weighted"), {"kind": "weighted"}),
    "cross layers": (lambda: small_dlrm.model("cross"), {"kind": "cross"}),
}
SIZES = (128, 37)  # 37 rows are not a multiple of any tile, vector or number of threads
_BIG_CORES = 1  # TVM's word for any core where all are alike


@pytest.fixture(scope="module", params=slow_except([[1, 3]], [[1, 3], [1, 2, 3]]), ids=str)
def digests(request):
    """Number of threads -> the lines that `main` prints about it."""
    counts = request.param
    own = {"TVM_NUM_THREADS": str(max(counts)), "TVM_THREAD_POOL_SPIN_COUNT": "0"}
    done = subprocess.run(
        [sys.executable, "-m", __name__, *map(str, counts)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    each = len(lines) // len(counts)
    return {count: lines[n * each : (n + 1) * each] for n, count in enumerate(counts)}


def test_each_run_has_the_threads_it_was_given(digests):
    assert all(count == int(lines[0]) for count, lines in digests.items())


def test_weights_and_slots_do_not_depend_on_the_number_of_threads(digests):
    first, *others = (lines[1:] for lines in digests.values())  # the code's hash too
    assert others and all(other == first for other in others)


def test_a_second_run_gives_the_same_weights_and_slots(digests):
    for lines in digests.values():
        runs = lines[2:]
        assert len(runs) == 2 * len(RUNS)
        assert runs[::2] == runs[1::2]


# Model -> hash of weights and slots after six steps, for a CPU that has SSE2 and nothing more. What
# is fused is so by its formula, vectors have one width: these bits do not depend on the machine's
# CPU. They guard order of operations in autodiff, kernels and optimizers, and the initial weights.
GENERIC = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}
GOLDEN = {
    "single": "283bcfa1f39fe18fce5f35aa60dab2ba44763e557cd484a4f2c4f844b4e93557",
    "weighted": "8afe1e1ed69e2f8701dca4db625691d086876cdf80c78fea1c7668558620c0eb",
}


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="recorded on x86-64")
@pytest.mark.parametrize("kind", slow_except(["weighted"], GOLDEN))
def test_the_bits_of_a_short_run_are_those_that_were_recorded(kind):
    done = subprocess.run(
        [sys.executable, "-m", __name__, "generic", kind],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    found = done.stdout.strip()
    assert found == GOLDEN[kind], (
        "results changed: if that is meant, record it and say so in CHANGELOG"
    )


def digests_of_two_runs(compiled: st.Trainer, options: dict) -> list[str]:
    """Hash all that training changes, after some steps of two sizes, twice from the same seed.

    What takes the steps is made anew, for as many threads as there are now.
    """
    found = []
    first = trainer_of(compiled.model)
    first.program = compiled.program
    for trainer in (first, small_dlrm.share_programs(trainer_of(compiled.model), first)):
        for step in range(6):
            trainer.step(small_dlrm.batch(SIZES[step % 2], step, **options))
        whole = hashlib.sha256()
        for name, array in sorted(trainer.state_dict().items()):
            whole.update(name.encode() + array.tobytes())
        found.append(whole.hexdigest())
    return found


def trainer_of(model: st.models.DLRM) -> st.Trainer:
    return st.Trainer(model, st.optim.adagrad(0.05), seed=1)


def digest_of_code(trainer: st.Trainer) -> str:
    """Hash what the compiler is given, as it is lowered now."""
    program = trainer.program
    module = schedule.pipeline(program.target)(take_as_lookup(program.module))
    return hashlib.sha256(module.script().encode()).hexdigest()


def main(counts: Iterable[int]) -> None:
    """For each number of threads print it, a hash of one model's code, two of each model's runs."""
    trainers = {name: trainer_of(make()) for name, (make, _) in RUNS.items()}
    for threads in counts:
        # By itself TVM starts no more threads than there are cores.
        tvm.get_global_func("runtime.config_threadpool")(_BIG_CORES, threads)
        print(st.runtime.num_threads())
        print(digest_of_code(next(iter(trainers.values()))))
        for name, (_, options) in RUNS.items():
            for digest in digests_of_two_runs(trainers[name], options):
                print(name, digest)


def generic(kind: str) -> None:
    """Print the hash of a model, with every kernel compiled for the generic CPU."""
    target = tvm.target.Target(GENERIC)
    tvm.target.Target.from_device = lambda _device: target  # what the host is asked by
    host._flags = lambda: None  # what would be added to it
    assert host_target() is target
    first, second = digests_of_two_runs(trainer_of(small_dlrm.model(kind)), {"kind": kind})
    assert first == second
    print(first)


if __name__ == "__main__":
    generic(sys.argv[2]) if sys.argv[1] == "generic" else main(map(int, sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""For each number of threads given, run few or all kernels that sum and print a digest of bits.

A program of its own, because TVM reads the variable `TVM_NUM_THREADS`, an upper bound, when it
starts.
"""

import hashlib
import sys
from dataclasses import replace

import numpy as np
import tvm

from sparsetrain import runtime
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.sparse_tensor import RowSparse
from tests.embedding.bags import Kind
from tests.models.interactions import program
from tests.optim.formulas import OPTIMIZERS, Run

# Which -> widths and formulas.
WHICH = {
    "few": ((131,), ("rowwise_adagrad",)),
    "all": ((16, 131), ("adagrad", "rowwise_adagrad")),
}


def results(rng: np.random.Generator, which: str):
    """Arrays whose last bits would show another order of summation."""
    widths, names = WHICH[which]
    for width in widths:
        gradient, weight = _gradient(rng, width)
        yield gradient.coalesce().values
        yield np.float64(gradient.squared_norm())
        for name in names:
            yield from Run(OPTIMIZERS[name], weight).apply(gradient).arrays().values()
            yield from Run(OPTIMIZERS[name], weight).apply(weight[::-1]).arrays().values()
            every_row = replace(OPTIMIZERS[name], update="dense")
            yield from Run(every_row, weight).apply(gradient).arrays().values()
            half = weight.astype(format_of("bfloat16").array)
            yield from Run(OPTIMIZERS[name], half).apply(gradient).arrays().values()
            yield from Run(every_row, half).apply(gradient).arrays().values()
    for kind in (Kind("mean", features=3, width=17), Kind(weighted=True, width=16)):
        arguments = kind.draw(list(rng.integers(0, 40, 300)), rng)
        params = {name: arguments[name] for name in ("table", "weights") if name in arguments}
        yield kind.forward()(params, arguments)
        gradients = kind.program()(params, arguments)[1]
        yield gradients["table"].coalesce().values
        yield from (gradients["weights"],) if kind.weighted else ()
    arrays = {name: _wild(rng, shape) for name, shape in (("x", (300, 16)), ("e", (300, 26, 16)))}
    yield from program(26, 16)[1](arrays, {"cotangent": _wild(rng, (300, 367))})[1].values()


def _wild(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (rng.standard_normal(shape) * 10 ** rng.uniform(-3, 3, shape)).astype("f4")


def _gradient(rng: np.random.Generator, width: int) -> tuple[RowSparse, np.ndarray]:
    indices = rng.zipf(1.2, 5000) % 900
    gradient = RowSparse.from_numpy(indices, _wild(rng, (5000, width)), 900)
    return gradient, _wild(rng, (900, width))


def digest(which: str) -> str:
    found = hashlib.sha256()
    for result in results(np.random.default_rng(0), which):
        array = result if isinstance(result, (np.ndarray, np.float64)) else runtime.as_numpy(result)
        found.update(array.tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    which, *numbers = sys.argv[1:]
    for threads in map(int, numbers):
        # The variable alone gives no more threads than there are cores.
        tvm.get_global_func("runtime.config_threadpool")(1, threads)
        print(runtime.num_threads(), digest(which))

# SPDX-License-Identifier: Apache-2.0
"""GFLOP/s of the matrix products of a linear layer, next to NumPy's on the same machine.

Forms: NT is the forward product `x w^T`, NN the cotangent of x, TN that of w. The batch size is
symbolic in every kernel: one compile serves all the batch sizes of a layer. NumPy takes turns in a
process of its own: two pools of spinning threads in one process slow each other down several times.
The best calls are those that no other process disturbed; the last line is the best of all products,
by which to judge a share of the machine's roof.

    python benchmarks/gemm.py
    python benchmarks/gemm.py --threads 1 --layers 512x256 13x64 --batches 128 2048 --json
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

FORMS = ("NT", "NN", "TN")
_AGAIN, _NEXT = "again", "next"
_PAUSE = 0.05  # seconds until idle threads of NumPy's BLAS stop spinning


def main() -> None:
    """Print one line, or one JSON object, per form, layer and batch size."""
    options = _options()
    if options.engine == "numpy":
        _answer(options)
        return
    with _start_numpy(options.threads) as peer:
        os.environ["TVM_NUM_THREADS"] = str(options.threads)
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        print(_machine(options.threads), file=sys.stderr)
        roof = 0.0
        for place, run, flops in _products(options, _our_products):
            ours, numpy = [], []
            for _ in range(options.turns):
                ours += _seconds(run, options.repeats)
                numpy += _ask(peer, _AGAIN)
                time.sleep(_PAUSE)
            _ask(peer, _NEXT)
            row = place | _rates(ours, flops) | {"numpy": _rates(numpy, flops)}
            roof = max(roof, row["best"], row["numpy"]["best"])
            print(json.dumps(row) if options.json else _line(row), flush=True)
        print(f"# best of all products: {roof:.1f}", file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    layers = ["512x256", "1024x1024", "367x512", "13x512", "64x16", "256x1"]
    parser.add_argument("--layers", nargs="+", default=layers, metavar="INxOUT")
    parser.add_argument("--batches", nargs="+", type=int, default=[128, 2048])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=40, help="of each product in a turn")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--engine", default="ours", choices=["ours", "numpy"], help="internal")
    return parser.parse_args()


def _start_numpy(threads: int) -> subprocess.Popen:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, *sys.argv[1:], "--engine", "numpy"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, bufsize=1, **pipes)


def _ask(peer: subprocess.Popen, request: str) -> list[float]:
    print(request, file=peer.stdin, flush=True)
    return json.loads(peer.stdout.readline())


def _answer(options: argparse.Namespace) -> None:
    """Measure a product as often as asked, then go on to the next."""
    for _, run, _ in _products(options, _numpy_products):
        while sys.stdin.readline().strip() == _AGAIN:
            print(json.dumps(_seconds(run, options.repeats)), flush=True)
        print("[]", flush=True)


def _machine(threads: int) -> str:
    from tvm.target import Target

    cpu = Target.from_device("cpu").attrs["mcpu"]
    return f"# {platform.system()} {cpu}, GFLOP/s, {threads} threads for ours and for NumPy's BLAS"


def _products(
    options: argparse.Namespace, engine: Callable
) -> Iterator[tuple[dict, Callable, int]]:
    import numpy as np

    random = np.random.default_rng(0)
    for layer in options.layers:
        inputs, outputs = (int(n) for n in layer.split("x"))
        prepare = engine(inputs, outputs, options.dtype)
        for batch in options.batches:
            x, w, cotangent = (
                random.standard_normal(shape).astype(options.dtype)
                for shape in [(batch, inputs), (outputs, inputs), (batch, outputs)]
            )
            operands = {"NT": (x, w), "NN": (cotangent, w), "TN": (cotangent, x)}
            flops = 2 * batch * inputs * outputs
            for form in FORMS:
                place = {"form": form, "batch": batch, "layer": layer, "threads": options.threads}
                yield place, prepare(form, *operands[form]), flops


def _numpy_products(_inputs: int, _outputs: int, _dtype: str) -> Callable:
    products = {
        "NT": lambda a, b: a @ b.T,
        "NN": lambda a, b: a @ b,
        "TN": lambda a, b: a.T @ b,
    }
    return lambda form, a, b: lambda: products[form](a, b)


def _our_products(inputs: int, outputs: int, dtype: str) -> Callable:
    import tvm

    kernels = _compile(inputs, outputs, dtype)

    def prepare(form, a, b):
        left, right = tvm.runtime.tensor(a), tvm.runtime.tensor(b)
        return lambda: kernels[form](left, right)

    return prepare


def _compile(inputs: int, outputs: int, dtype: str) -> dict[str, Callable]:
    import tvm
    from tvm import relax, tirx

    from sparsetrain.compiler.schedule import pipeline

    batch = tirx.Var("batch", "int64")
    shapes = {"x": (batch, inputs), "w": (outputs, inputs), "cotangent": (batch, outputs)}
    op = relax.op
    products = {
        "NT": ("x", "w", lambda a, b: op.matmul(a, op.permute_dims(b))),
        "NN": ("cotangent", "w", op.matmul),
        "TN": ("cotangent", "x", lambda a, b: op.matmul(op.permute_dims(a), b)),
    }
    builder = relax.BlockBuilder()
    for form, (*names, product) in products.items():
        operands = [relax.Var(name, relax.TensorType(shapes[name], dtype)) for name in names]
        with builder.function(form, operands):
            with builder.dataflow():
                result = builder.emit_output(product(*operands))
            builder.emit_func_output(result)
    target = tvm.target.Target.from_device("cpu")
    executable = relax.build(builder.finalize(), target, relax_pipeline=pipeline(target))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return {form: machine[form] for form in FORMS}


def _seconds(run: Callable, repeats: int) -> list[float]:
    for _ in range(3):
        run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds


def _rates(seconds: list[float], flops: int) -> dict[str, float]:
    deciles = statistics.quantiles(seconds, n=10)
    points = {"median": statistics.median(seconds), "p10": deciles[-1], "best": min(seconds)}
    return {name: flops / value / 1e9 for name, value in points.items()}


def _line(row: dict) -> str:
    ours, numpy = (
        f"{of['best']:7.1f} (median {of['median']:.1f}, p10 {of['p10']:.1f})"
        for of in (row, row["numpy"])
    )
    return (
        f"{row['form']} batch {row['batch']:5} layer {row['layer']:>9}  {ours}  numpy {numpy}"
        f"  {row['best'] / row['numpy']['best']:.2f}"
    )


if __name__ == "__main__":
    main()

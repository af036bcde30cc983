# SPDX-License-Identifier: Apache-2.0
"""GFLOP/s of the matrix products of a linear layer, next to NumPy's on the same machine.

Forms: NT is the forward product `x w^T`, NN the cotangent of x, TN that of w. The batch size is
symbolic in every kernel: one compile serves all the batch sizes of a layer. NumPy runs in a
process of its own, before ours: two pools of spinning threads in one process slow each other down
several times.

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


def main() -> None:
    """Print one line, or one JSON object, per form, layer and batch size."""
    options = _options()
    if options.engine == "numpy":
        for row in _measure(options, _numpy_products):
            print(json.dumps(row), flush=True)
        return
    peers = _run_numpy(options.threads)
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    print(_machine(options.threads), file=sys.stderr)
    for row, peer in zip(_measure(options, _our_products), peers, strict=True):
        row["numpy"] = peer["median"]
        print(json.dumps(row) if options.json else _line(row), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    layers = ["512x256", "1024x1024", "367x512", "13x512", "64x16", "256x1"]
    parser.add_argument("--layers", nargs="+", default=layers, metavar="INxOUT")
    parser.add_argument("--batches", nargs="+", type=int, default=[128, 2048])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--engine", default="ours", choices=["ours", "numpy"], help="internal")
    return parser.parse_args()


def _run_numpy(threads: int) -> list[dict]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, *sys.argv[1:], "--engine", "numpy"]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _machine(threads: int) -> str:
    from tvm.target import Target

    cpu = Target.from_device("cpu").attrs["mcpu"]
    return f"# {platform.system()} {cpu}, GFLOP/s, {threads} threads for ours and for NumPy's BLAS"


def _measure(options: argparse.Namespace, engine: Callable) -> Iterator[dict]:
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
                yield place | _rates(prepare(form, *operands[form]), flops, options.repeats)


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


def _rates(run: Callable, flops: int, repeats: int) -> dict[str, float]:
    for _ in range(3):
        run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    deciles = statistics.quantiles(seconds, n=10)
    points = {"median": statistics.median(seconds), "p10": deciles[-1], "p90": deciles[0]}
    return {name: flops / value / 1e9 for name, value in points.items()}


def _line(row: dict) -> str:
    return (
        f"{row['form']} batch {row['batch']:5} layer {row['layer']:>9}"
        f"  {row['median']:7.1f} (p10 {row['p10']:.1f}, p90 {row['p90']:.1f})"
        f"  numpy {row['numpy']:7.1f}"
    )


if __name__ == "__main__":
    main()

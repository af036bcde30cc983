# SPDX-License-Identifier: Apache-2.0
"""Time to an answer of an exported model: from C, from Python, over HTTP, and of two peers.

    python benchmarks/serving.py
    python benchmarks/serving.py --peer-python peers/bin/python   # onnxruntime and AOTInductor

A DLRM of 26 tables x 16, hidden layers of 64, on synthetic Criteo rows; all on one thread. `C` and
`Python` take raw values, so their time has the lookups of the encoder in it. The peers (torch and
onnxruntime) take rows of the table and floats: `program` is ours of the same. Cold start is a
process of `examples/serving/predict.c` from exec to exit, with one row. Over HTTP, requests of one
row in JSON are sent at a fixed rate, whether answers are there or not, and timed from when they
were due. The server and the client share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TVM_NUM_THREADS"] = "1"

import numpy as np

import sparsetrain as st
from sparsetrain.serving.column import as_column
from sparsetrain.serving.export import export
from sparsetrain.serving.libraries import compiler
from sparsetrain.serving.model import Model

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "benchmarks" / "harness" / "serving_peers.py"
SIZES = (1, 1000)


def main() -> None:
    """Measure and print."""
    options = _options()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        trainer, columns = _trained(options.rows)
        export(trainer, place / "model", cpu=options.cpu)
        print(f"{trainer.model!r}, {options.cpu}, 1 thread")
        _measure_c(place, columns, options.calls)
        _measure_python(place / "model", columns, options.calls)
        _measure_program(place, trainer, columns, options)
        if options.rate:
            asyncio.run(_measure_http(place / "model", columns, options.rate, options.seconds))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000, help="rows that the encoder sees")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--cpu", default="native")
    parser.add_argument("--rate", type=int, default=1000, help="requests a second; 0: no HTTP")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--peer-python", help="interpreter with torch, onnx and onnxruntime")
    return parser.parse_args()


def _trained(rows: int) -> tuple[st.Trainer, dict[str, list[Any]]]:
    made = st.data.SyntheticCriteo(seed=0)
    encoder = st.data.Encoder.fit(made.chunk(0, rows=rows), min_count=2)
    model = st.models.DLRM(
        rows=encoder.rows, dim=16, bottom=(64,), top=(64,), num_dense=encoder.num_dense
    )
    trainer = st.Trainer(model, st.optim.adagrad(0.02), encoder=encoder)
    table = made.chunk(1, rows=max(SIZES))
    names = [*encoder.dense_columns, *encoder.columns]
    return trainer, {name: table.column(name).to_pylist() for name in names}


def _line(what: str, rows: int, took: np.ndarray) -> None:
    middle, high = np.percentile(took, [50, 99])
    print(f"{what:12} {rows:5} rows  p50 {middle:8.3f} ms  p99 {high:8.3f} ms")


def _timed(call: Callable[[int], Any], calls: int) -> np.ndarray:
    """Milliseconds of each call, after 20 that do not count."""
    took = np.empty(calls + 20)
    for number in range(calls + 20):
        begin = time.perf_counter()
        call(number)
        took[number] = time.perf_counter() - begin
    return took[20:] * 1e3


def _measure_c(place: Path, columns: dict[str, list[Any]], calls: int) -> None:
    folder, built = place / "model", place / "predict"
    flags = ["-O2", "-I", str(folder), f"-Wl,-rpath,{folder}", "-o", str(built)]
    source, library = ROOT / "examples/serving/predict.c", folder / "libsparsetrain.so"
    subprocess.run([*compiler(), str(source), str(library), *flags], check=True)
    for count in SIZES:
        lines = ["\t".join(columns)]
        cut = [values[:count] for values in columns.values()]
        lines += [_as_line(row) for row in zip(*cut, strict=True)]
        (place / f"{count}.tsv").write_text("\n".join(lines) + "\n")
    once = [str(built), str(folder), str(place / "1.tsv")]
    _line("C cold start", 1, _timed(lambda _: subprocess.check_output(once), 20))
    said = subprocess.check_output([*once[:2], str(place / "1000.tsv"), str(calls)], text=True)
    print("".join(f"C            {line}\n" for line in said.splitlines()), end="")


def _as_line(row: tuple[Any, ...]) -> str:
    return "\t".join("" if value is None else str(value) for value in row)


def _measure_python(folder: Path, columns: dict[str, list[Any]], calls: int) -> None:
    model = Model(folder)
    each = [{name: values[row : row + 1] for name, values in columns.items()} for row in range(500)]
    _line("Python", 1, _timed(lambda n: model.predict(each[n % 500]), calls))
    laid_out = {name: as_column(values, name) for name, values in columns.items()}
    _line("Python", 1000, _timed(lambda _: model.predict_columns(laid_out), calls // 5))


def _measure_program(
    place: Path, trainer: st.Trainer, columns: dict[str, list[Any]], options: argparse.Namespace
) -> None:
    """Ours of encoded rows, and peers with the same weights and inputs."""
    batch = trainer.encoder.encode(columns, require_label=False)
    inputs = trainer.model.inputs(batch)
    program = st.Program(trainer.model.export(), "logits", "cpu")
    for size in SIZES:
        part = {name: array[:size] for name, array in inputs.items()}
        took = _timed(lambda _, part=part: program(trainer.params, part), options.calls)
        _line("program", size, took)
    if options.peer_python:
        logits = st.runtime.as_numpy(program(trainer.params, inputs))
        weights = {name: st.runtime.as_numpy(array) for name, array in trainer.params.items()}
        np.savez(place / "peers.npz", logits=logits, **inputs, **weights)
        where = [str(place / "peers.npz"), str(options.calls)]
        # Isolated: beside that script lies a `profile.py`, which torch would import.
        command = [options.peer_python, "-I", "-W", "ignore", str(PEERS), *where]
        said = subprocess.check_output(command, text=True)
        for found in map(json.loads, said.splitlines()):
            _line(found["arm"], found["rows"], np.array(found["ms"]))
            print(f"{'':12} largest difference from our logits {found['difference']:.1e}")


async def _measure_http(
    folder: Path, columns: dict[str, list[Any]], rate: int, seconds: float
) -> None:
    """Print percentiles of requests that are due at a fixed rate, on 32 connections."""
    code = "import sys; from sparsetrain.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "serve", str(folder), "--port", "0"]
    server = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert server.stdout is not None
    port = int((await server.stdout.readline()).rpartition(b":")[2])
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    requests = [_request(row) for row in rows]
    total, free = int(rate * seconds), asyncio.Queue[Any]()
    for _ in range(32):
        free.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    took, failed, begin = np.empty(total), 0, time.perf_counter() + 0.2

    async def ask(number: int) -> None:
        nonlocal failed
        due = begin + number / rate
        reader, writer = await free.get()
        writer.write(requests[number % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        await reader.readexactly(length)
        took[number] = time.perf_counter() - due
        failed += not head.startswith(b"HTTP/1.1 200")
        free.put_nowait((reader, writer))

    tasks = []
    for number in range(total):
        await asyncio.sleep(max(begin + number / rate - time.perf_counter(), 0))
        tasks.append(asyncio.create_task(ask(number)))
    await asyncio.gather(*tasks)
    _line(f"HTTP {rate}/s", 1, took * 1e3)
    print(f"{'':12} {total} requests, {failed} failed, {total / (took[-1] + seconds):.0f}/s")
    server.terminate()
    await server.wait()


def _request(row: dict[str, Any]) -> bytes:
    body = json.dumps({"rows": [row]}).encode()
    head = "POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


if __name__ == "__main__":
    main()

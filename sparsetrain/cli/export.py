# SPDX-License-Identifier: Apache-2.0
"""Commands on saved models: `export`, `apply`, `serve` and `quantize`."""

import signal
from pathlib import Path
from typing import Annotated, Literal

import typer

from sparsetrain.cli.options import AsJson
from sparsetrain.cli.output import emit
from sparsetrain.cli.output_files import require_free
from sparsetrain.cli.saved_model import (
    Checkpoint,
    ModelClass,
    ModelFolder,
    Precision,
    load_by,
    require_export,
    require_no_export,
)
from sparsetrain.cli.settings.model_class import import_class
from sparsetrain.cli.stop import StopSignals
from sparsetrain.errors import ConfigError
from sparsetrain.system.cores import default_level


def export(
    model: ModelFolder,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER|FILE.onnx", help="New folder or file.")
    ],
    cpu: Annotated[
        str,
        typer.Option(
            "--cpu",
            metavar="x86-64-v3|x86-64-v4|native",
            help="Instructions that the kernels may use; native: all that this machine has.",
        ),
    ] = default_level(),
    since: Annotated[
        Path | None,
        typer.Option(
            "--since", metavar="FOLDER", help="Write only what this older export lacks: a delta."
        ),
    ] = None,
    checkpoint: Checkpoint = "auto",
    precision: Precision = None,
    model_class: ModelClass = None,
    as_json: AsJson = False,
) -> None:
    """Export a model to a folder that needs no Python and no compiler.

    It holds compiled kernels, the weights, the encoder, a C header and TVM's runtime. A FILE.onnx
    has only the model, without the encoder.
    """
    require_no_export(model)
    require_free(out)
    chosen = {"checkpoint": checkpoint, "precision": precision, "model": import_class(model_class)}
    if out.suffix == ".onnx":
        if since is not None:
            raise ConfigError("--since works with a FOLDER only; a FILE.onnx has no delta")
        from sparsetrain.serving.onnx_model import export_onnx

        with StopSignals():
            export_onnx(model, out, **chosen)
        emit({"out": str(out)}, f"written to {out}", as_json)
        return
    from sparsetrain.serving.export import export as write

    with StopSignals():
        write(model, out, cpu=cpu, since=since, **chosen)
    following = f"sparsetrain serve {out}"
    if since is not None:
        following = f"sparsetrain apply {since} {out} --out NEWER"
    size = sum(path.stat().st_size for path in out.iterdir())
    emit(
        {"out": str(out), "cpu": cpu, "bytes": size},
        f"{size / 1e6:,.1f} MB for {cpu} written to {out}\nNext: {following}",
        as_json,
    )


def apply(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Older export.")],
    delta: Annotated[
        Path, typer.Argument(metavar="DELTA", help="What `export --since FOLDER` wrote.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="NEWER", help="New folder to write.")],
) -> None:
    """Apply a delta to an exported model, and write the newer one.

    To update a server, start `serve` with a link, move the link to NEWER and send SIGHUP.
    """
    from sparsetrain.serving.delta import apply as make

    require_export(folder)
    require_export(delta)
    require_free(out)
    with StopSignals():
        make(folder, delta, out)
    emit({"out": str(out)}, f"written to {out}", as_json=False)


def serve(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder that `export --out` wrote.")
    ],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 is every network.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free one.")
    ] = 8000,
    max_body: Annotated[
        int, typer.Option("--max-body", min=1, help="Most bytes of a request, once decompressed.")
    ] = 16 << 20,
    max_rows: Annotated[
        int, typer.Option("--max-rows", min=1, help="Most rows of a request.")
    ] = 100_000,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.1, help="Seconds for a request and its answer."),
    ] = 10.0,
    connections: Annotated[
        int, typer.Option("--connections", min=1, help="Most connections at once.")
    ] = 512,
    absent: Annotated[
        Literal["error", "null"],
        typer.Option(
            "--absent",
            help="Treatment of a column that no row of a request has: an error, or missing values.",
        ),
    ] = "error",
    log: Annotated[
        Literal["text", "json"],
        typer.Option("--log", help="Format of the log; json writes a line for each answer."),
    ] = "text",
) -> None:
    """Serve an exported model over HTTP: POST /predict in JSON or Arrow, GET /health and /metrics.

    SIGHUP reopens FOLDER without downtime, SIGTERM stops after the current requests.
    """
    require_export(folder)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until FOLDER is opened for the first time
    try:
        from sparsetrain.serving.limits import Limits
        from sparsetrain.serving.server import serve as run
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serve needs the package {error.name}: pip install 'sparsetrain[serve]'"
        ) from None
    run(folder, host, port, Limits(max_body, timeout, connections, max_rows), absent, log)


def quantize(
    model: ModelFolder,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="New folder to write.")],
    checkpoint: Checkpoint = "auto",
    precision: Precision = None,
    model_class: ModelClass = None,
    as_json: AsJson = False,
) -> None:
    """Make an int8 model for prediction only.

    A row of a table takes dim + 8 bytes.
    """
    import sparsetrain as st

    require_free(out)
    with StopSignals():
        how = {"target": "cpu", "precision": precision}
        trainer = load_by(st.load, model, checkpoint, model_class, **how)
        quantized = trainer.quantized()
        quantized.save(out)
    before, after = trainer.table_bytes, quantized.table_bytes
    result = {"out": str(out), "table_bytes_before": before, "table_bytes": after}
    emit(
        result,
        f"tables of {before / 1e6:,.1f} MB became {after / 1e6:,.1f} MB; written to {out}\n"
        f"Next: sparsetrain evaluate {out} DATA, sparsetrain predict {out} ROWS --out FILE",
        as_json,
    )

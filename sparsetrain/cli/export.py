# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain export`: a saved model as a folder that answers by itself; `apply`: a newer one."""

from pathlib import Path
from typing import Annotated

import typer

from sparsetrain.cli.options import AsJson
from sparsetrain.cli.output import emit
from sparsetrain.cli.output_files import require_free
from sparsetrain.cli.saved_model import Checkpoint, ModelClass, ModelFolder, Precision, import_class
from sparsetrain.cli.stop import StopSignals
from sparsetrain.errors import ConfigError


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
            help="Instructions that the kernels may use; native: those of this machine.",
        ),
    ] = "x86-64-v3",
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
    """Write a folder that answers without Python or a compiler.

    It holds compiled kernels, the weights, the encoder, a C header and TVM's runtime. A FILE.onnx
    has the model alone, without the encoder.
    """
    require_free(out)
    chosen = {"checkpoint": checkpoint, "precision": precision, "model": import_class(model_class)}
    if out.suffix == ".onnx":
        if since is not None:
            raise ConfigError("--since is for a FOLDER; a FILE.onnx is written whole")
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
    """Make a newer export of an older one and a delta.

    Give `serve` a link; move it to NEWER and send SIGHUP.
    """
    from sparsetrain.serving.delta import apply as make

    require_free(out)
    with StopSignals():
        make(folder, delta, out)
    emit({"out": str(out)}, f"written to {out}", as_json=False)

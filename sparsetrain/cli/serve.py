# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain serve`: an HTTP server of an exported model."""

from pathlib import Path
from typing import Annotated

import typer

from sparsetrain.errors import ConfigError


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
        int, typer.Option("--max-body", min=1, help="Most bytes of a request.")
    ] = 16 << 20,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Most seconds of a request.")
    ] = 10.0,
    connections: Annotated[
        int, typer.Option("--connections", min=1, help="Most connections at once.")
    ] = 512,
) -> None:
    """Answer requests over HTTP: POST /predict in JSON or Arrow, GET /health and /metrics.

    SIGHUP opens FOLDER again without a stop, SIGTERM ends after the requests at hand.
    """
    try:
        from sparsetrain.serving.server import Limits
        from sparsetrain.serving.server import serve as run
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serve needs the package {error.name}: pip install 'sparsetrain[serve]'"
        ) from None
    run(folder, host, port, Limits(max_body, timeout, connections))

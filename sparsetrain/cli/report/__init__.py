# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain report`: runs side by side on one HTML page that needs no network.

`facts` reads the contents of the page, `page` lays it out.
"""

from pathlib import Path
from typing import Annotated

import typer

from sparsetrain.cli.options import AsJson
from sparsetrain.cli.output import emit
from sparsetrain.cli.output_files import replace_file, require_writable
from sparsetrain.cli.plot import names_of
from sparsetrain.cli.saved_model import Checkpoint, ModelClass
from sparsetrain.cli.stop import StopSignals
from sparsetrain.errors import ConfigError


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders that `train --out` wrote.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Page to write, .html; report.html in the first RUN."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA", help="Labelled rows to score, for calibration and unseen values."
        ),
    ] = None,
    checkpoint: Checkpoint = "auto",
    model_class: ModelClass = None,
    as_json: AsJson = False,
) -> None:
    """Write an HTML report on one or more runs."""
    from sparsetrain.cli.report.facts import read_facts
    from sparsetrain.cli.report.page import MOST_RUNS, page

    if len(runs) > MOST_RUNS:
        raise ConfigError(f"{len(runs)} runs are too many for one page: name {MOST_RUNS} at most")
    out = out or runs[0] / "report.html"
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {out}: unsupported file type: use .html")
    require_writable(out)
    with StopSignals():
        facts = [
            read_facts(name, run, data, checkpoint, model_class)
            for name, run in zip(names_of(runs), runs, strict=True)
        ]
        content = page(facts, data.name if data else None).encode("utf-8", "backslashreplace")
        with replace_file(out) as draft:
            draft.write_bytes(content)
    result = {"out": str(out), "runs": len(runs), "bytes": len(content)}
    emit(result, f"a report of {', '.join(f.name for f in facts)} in {out}", as_json)

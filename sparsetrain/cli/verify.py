# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain verify`: checks of the README's promises on this machine and for your own run."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsetrain.cli.options import AsJson
from sparsetrain.cli.output import emit, format_table, note
from sparsetrain.cli.output_files import replace_file, require_writable
from sparsetrain.cli.saved_model import ModelClass
from sparsetrain.cli.settings.model_class import import_class
from sparsetrain.cli.stop import StopSignals
from sparsetrain.errors import ConfigError, NumericalError
from sparsetrain.training.progress import format_count, format_seconds

if TYPE_CHECKING:
    from sparsetrain.verify.outcome import Outcome
    from sparsetrain.verify.subject import Subject


def verify(
    run: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A saved model of yours; needs --data.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Labelled rows for that model.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a certificate, JSON; replaced.")
    ] = None,
    inject: Annotated[
        str | None,
        typer.Option(
            metavar="CHECK",
            help="Inject the fault that this check must find, to see it fail; all: for each check.",
        ),
    ] = None,
    model_class: ModelClass = None,
    as_json: AsJson = False,
) -> None:
    """Prove on this machine that results are exact and deterministic."""
    import sparsetrain as st
    from sparsetrain.verify.certificate import certificate, run_checks
    from sparsetrain.verify.checks import CHECKS

    if (run is None) != (data is None):
        raise ConfigError("--run and --data need each other: a model, and rows to check it on")
    if data is not None and not data.is_file():
        raise ConfigError(f"--data {data}: is not a file")
    if inject not in (None, "all", *CHECKS):
        raise ConfigError(f"--inject {inject}: the checks are {', '.join(CHECKS)}, or all")
    if out is not None:
        require_writable(out)
    names = [inject] if inject in CHECKS else list(CHECKS)
    begin = time.monotonic()
    outcomes: dict[str, Outcome] = {}
    with StopSignals(), tempfile.TemporaryDirectory() as folder:
        subject = _subject(Path(folder), run, data, model_class)
        _ = subject.batches  # raises for unreadable input before the first check
        for number, name in enumerate(names, start=1):
            note(f"{number} of {len(names)}: {CHECKS[name].promise}")
            outcomes |= dict(run_checks(subject, [name], inject is not None))
    result = {
        "sparsetrain": st.__version__,
        **certificate(outcomes, run, data, names if inject else []),
    }
    if out is not None:
        with replace_file(out) as draft:
            draft.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    emit(result, _describe(outcomes, time.monotonic() - begin, out), as_json)
    if inject in outcomes and outcomes[inject].skipped:
        raise ConfigError(f"--inject {inject}: {outcomes[inject].compared}")
    if inject and (missed := [n for n, o in outcomes.items() if o.ok and not o.skipped]):
        raise NumericalError(f"verify: the fault was not found by: {', '.join(missed)}")
    failed = [name for name, outcome in outcomes.items() if not outcome.ok]
    if failed:
        raise NumericalError(f"verify: FAILED: {', '.join(failed)}")


def _subject(folder: Path, run: Path | None, data: Path | None, named: str | None) -> Subject:
    from sparsetrain.verify.subject import new_subject, subject_of_run

    if run is None or data is None:
        return new_subject(folder)
    model: Any = import_class(named)
    return subject_of_run(run, data, model)


def _describe(outcomes: Mapping[str, Outcome], seconds: float, out: Path | None) -> str:
    rows = [["check", "bound", "found", "unit", "result"]]
    lines = []
    for name, outcome in outcomes.items():
        if outcome.skipped:
            rows.append([name, "-", "-", "-", "not run"])
        else:
            figures = [f"{value:.3g}" for value in (outcome.bound, outcome.found)]
            rows.append([name, *figures, outcome.unit, "ok" if outcome.ok else "FAILED"])
        lines.append(f"{name}: {outcome.compared}")
    written = f"; certificate in {out}" if out is not None else ""
    done = f"{format_count(len(outcomes), 'check')} in {format_seconds(seconds)}{written}"
    return "\n".join([*lines, "", format_table(rows), "", done])

# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain convert`: raw logs to encoded parquet in bounded memory; resumable."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from sparsetrain.cli.options import AsJson, SettingOptions, with_settings
from sparsetrain.cli.output import emit, format_share, format_table, note
from sparsetrain.cli.output_files import require_writable
from sparsetrain.cli.settings import Settings
from sparsetrain.cli.stop import StopSignals
from sparsetrain.errors import ConfigError
from sparsetrain.system.cores import available_cores
from sparsetrain.training.progress import format_count, format_seconds


@with_settings("--schema", "--min-count", "--max-rows", "--numbers")
def convert(
    settings: SettingOptions,
    inputs: Annotated[
        list[Path], typer.Argument(metavar="INPUT", help="Parquet or text files, folders, globs.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the result.")],
    encoder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Use this converted folder's encoder; fit none."),
    ] = None,
    label: Annotated[bool, typer.Option(help="Whether there is a label column.")] = True,
    bad_rows: Annotated[
        str, typer.Option(metavar="RULE", help="error, skip or quarantine.")
    ] = "error",
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory limit, such as 1.5GB or 4GiB.")
    ] = "2GiB",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads; by default one per core.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert raw logs to encoded parquet.

    After an interruption, run it again to continue.
    """
    import sparsetrain as st

    data = settings.resolve().data
    if data.label is not None:
        raise ConfigError(
            "data.label works with `train` only: write a schema file with `sparsetrain schema`, "
            "and pass it with --schema"
        )
    if data.numbers in ("periodic", "autodis"):
        raise ConfigError(
            f"--numbers {data.numbers} works with `train` only, since it learns no bins to convert "
            "numbers into: pass it to `train` instead"
        )
    encoding = data.encoding()
    if encoder is not None and (settings.entries or encoding != Settings().data.encoding()):
        others = ", ".join(settings.flags()) or "settings of data"
        raise ConfigError(f"--encoder has its own schema and settings: remove {others}")
    require_writable(out)
    with StopSignals():
        summary = st.data.convert_files(
            [str(path) for path in inputs],
            out,
            encoder=encoder,
            label=label,
            **encoding,
            bad_rows=bad_rows,
            memory=parse_size(memory),
            workers=workers or available_cores(),
            progress=PassProgress(),
        )
    _warn_bad_rows(summary, bad_rows)
    emit({"out": str(out), **summary}, _describe(summary, out, label, encoder), as_json)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `1.5GB` (10^9) or `4GiB` (2^30)."""
    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        raise ConfigError(f"--memory {text}: expected a size such as 1.5GB or 4GiB") from None


def _warn_bad_rows(summary: dict[str, Any], rule: str) -> None:
    if not summary["bad_rows"]:
        return
    where = ", ".join(f"{n:,} in {name}" for name, n in summary["bad_rows_by_column"].items())
    kept = " (all in _quarantine.jsonl)" if rule == "quarantine" else ""
    note(f"warning: {summary['bad_rows']:,} bad rows were left out: {where}{kept}")
    for example in summary["bad_row_examples"][:3]:
        note(f"  {example}")


def _describe(summary: dict[str, Any], out: Path, label: bool, encoder: Path | None) -> str:
    rows, clicks = summary["rows"], summary["positive"]
    labels = "no label" if not label else "labels " + ", ".join(summary["labels"])
    clicked = labels if clicks is None or not label else f"{clicks / rows:.2%} clicks"
    files = format_count(len(summary["files"]), "file")
    dense = format_count(len(summary["dense"]), "dense column")
    following = f"train {out} --out {out}-run"
    if not label:
        following = f"predict run {out} --out predictions.parquet"
    elif encoder is not None:
        following = f"evaluate run {out}"
    columns = summary["categories"]
    tables = {n: column for n, column in columns.items() if "share_embedding" not in column}
    total = sum(column["rows"] for column in tables.values())
    largest = sorted(tables.items(), key=lambda item: -item[1]["rows"])[:5]
    cells = [["largest tables", "rows", "distinct", "missing", "rare"]]
    for name, column in largest:
        shares = [format_share(column.get(key), column["ids"]) for key in ("missing", "rare")]
        distinct = column.get("distinct")
        seen = "-" if distinct is None else f"{distinct:,}"
        cells.append([name, f"{column['rows']:,}", seen, *shares])
    return "\n".join(
        [
            f"{format_count(rows, 'row')}, {clicked}, in {files} of {out}",
            f"{dense}, {format_count(len(tables), 'table')} of {total:,} rows",
            "",
            format_table(cells),
            "",
            f"Next: sparsetrain {following}",
        ]
    )


class PassProgress:
    """Prints the progress of a pass every `every` seconds and at its end."""

    def __init__(self, every: float = 5.0) -> None:
        self._every, self._name, self._rows = every, "", 0
        self._shown, self._began, self._before = time.monotonic(), 0.0, 0.0

    def __call__(self, what: str, rows: int, done: float) -> None:
        """Count `rows` more rows of pass `what`; `done` is its completed share."""
        now = time.monotonic()
        if what != self._name:
            self._name, self._rows, self._began = what, 0, now
        if not self._rows:  # an earlier run completed this part
            self._began, self._before = now, 0.0 if rows else done
        self._rows += rows
        if now - self._shown < self._every and done < 1:
            return
        self._shown, seconds = now, now - self._began
        text = f"{what} {done:.0%}"
        if self._rows:
            text += f", {format_count(self._rows, 'row')}"
        if self._before < done < 1:
            left = seconds * (1 - done) / (done - self._before)
            text += f", {format_seconds(left)} left"
        note(text)

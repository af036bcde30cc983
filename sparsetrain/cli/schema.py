# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain schema`: a schema file inferred from rows; and the schema of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsetrain.cli.options import AsJson, SettingOptions, with_settings
from sparsetrain.cli.output import emit, note
from sparsetrain.errors import ConfigError

if TYPE_CHECKING:
    import sparsetrain as st
    from sparsetrain.cli.settings import DataSettings


@with_settings("--label", "--dense", "--category", "--ignore", general=False)
def schema(
    settings: SettingOptions,
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Files or folders to read.")],
    as_json: AsJson = False,
) -> None:
    """Infer a schema file from rows, to edit and pass as --schema."""
    data = settings.resolve().data
    if data.label is None:
        raise ConfigError("--label is missing: name the column to predict")
    inferred = _infer(data, [str(path) for path in files])
    taken = [f"# {name}: {what}" for name, what in inferred.columns.items()]
    result = {"schema": inferred.schema.to_dict(), "columns": inferred.columns}
    emit(result, "\n".join([*taken, "", inferred.schema.to_toml().rstrip()]), as_json)


def schema_of(data: DataSettings, paths: Sequence[str]) -> st.data.Schema:
    """Return the schema of a file, or infer it for `--label` and print each column's role."""
    import sparsetrain as st

    if data.label is None:
        return st.data.Schema.read(data.schema_file)
    inferred = _infer(data, paths)
    for name, what in inferred.columns.items():
        note(f"{name}: {what}")
    note("to change the role of a column: --dense, --category or --ignore COLUMN")
    return inferred.schema


def _infer(data: DataSettings, paths: Sequence[str]) -> Any:
    import sparsetrain as st

    assert data.label is not None
    ignore = (*data.ignore, *([data.weights] if data.weights else []))
    return st.data.infer(
        list(paths), data.label, dense=data.dense, categories=data.category, ignore=ignore
    )

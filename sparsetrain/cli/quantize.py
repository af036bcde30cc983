# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain quantize`: a smaller model for prediction, with int8 tables."""

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from sparsetrain.cli.options import AsJson
from sparsetrain.cli.output import emit
from sparsetrain.cli.output_files import require_free
from sparsetrain.cli.saved_model import (
    Checkpoint,
    ModelClass,
    ModelFolder,
    Precision,
    import_class,
    note_checkpoint,
)
from sparsetrain.cli.stop import StopSignals


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
        trainer = st.load(
            model,
            checkpoint=checkpoint,
            target="cpu",
            precision=cast(Any, precision),
            model=import_class(model_class),
        )
        note_checkpoint(model, checkpoint, trainer.steps)
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

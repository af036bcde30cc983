# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain quantize`: a smaller model to predict with, its tables in rows of int8."""

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from sparsetrain.cli.options import AsJson, Model, Precision, Which
from sparsetrain.cli.output import emit
from sparsetrain.cli.own_class import OwnClass, class_of
from sparsetrain.cli.preflight import require_free
from sparsetrain.cli.stop import StopSignals
from sparsetrain.cli.which import tell_which


def quantize(
    model: Model,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="New folder for it.")],
    which: Which = "auto",
    precision: Precision = None,
    own: OwnClass = None,
    as_json: AsJson = False,
) -> None:
    """Make an int8 model, for prediction alone.

    A row of a table takes dim + 8 bytes.
    """
    import sparsetrain as st

    require_free(out)
    with StopSignals():
        trainer = st.load(
            model,
            which=which,
            target="cpu",
            precision=cast(Any, precision),
            model=class_of(own),
        )
        tell_which(model, which, trainer.steps)
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

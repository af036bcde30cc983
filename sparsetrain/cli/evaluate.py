# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain evaluate`: scores of a saved model on labelled data."""

from pathlib import Path
from typing import Annotated

import typer

from sparsetrain.cli.options import AsJson, BatchSize, Model, Which
from sparsetrain.cli.output import emit, format_scores, warn_if_useless
from sparsetrain.cli.stop import StopSignals


def evaluate(
    model: Model,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Parquet file with labels.")],
    which: Which = "latest",
    batch_size: BatchSize = 4096,
    as_json: AsJson = False,
) -> None:
    """Score a model on labelled data."""
    import sparsetrain as st

    with StopSignals():
        st.data.open_source(str(data))
        trainer = st.load(model, which=which)
        scores = trainer.evaluate(str(data), batch_size=batch_size)
    warn_if_useless(data.name, scores)
    emit(scores, format_scores({data.name: scores}), as_json)

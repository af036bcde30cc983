# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain evaluate`: scores of a saved model on labelled data."""

from pathlib import Path
from typing import Annotated

import typer

from sparsetrain.cli.options import AsJson, BatchSize, SettingOptions, with_settings
from sparsetrain.cli.output import emit, format_scores, warn_if_useless
from sparsetrain.cli.saved_model import (
    Checkpoint,
    ModelClass,
    ModelFolder,
    Precision,
    load_predictor,
    warn_unseen,
)
from sparsetrain.cli.stop import StopSignals


@with_settings("--warn-unseen", general=False)
def evaluate(
    settings: SettingOptions,
    model: ModelFolder,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Labelled rows, parquet or text.")],
    checkpoint: Checkpoint = "auto",
    batch_size: BatchSize = 4096,
    precision: Precision = None,
    model_class: ModelClass = None,
    as_json: AsJson = False,
) -> None:
    """Score a model on labelled data."""
    import sparsetrain as st

    limit = settings.resolve().data.warn_unseen
    with StopSignals():
        predictor = load_predictor(model, checkpoint, precision, model_class)
        dataset = st.data.Dataset(str(data), predictor.encoder, read_weights=False)
        scores = predictor.evaluate(dataset, batch_size=batch_size)
    warn_if_useless(data.name, scores)
    unseen = warn_unseen(dataset, predictor.encoder, limit)
    emit({**scores, **unseen}, format_scores({data.name: scores}), as_json)

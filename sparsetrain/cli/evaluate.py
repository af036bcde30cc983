# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain evaluate`: scores of a saved model on labelled data."""

from pathlib import Path
from typing import Annotated

import typer

from sparsetrain.cli.options import (
    AsJson,
    BatchSize,
    Model,
    Precision,
    WarnUnseen,
    Which,
    settings_from,
)
from sparsetrain.cli.output import emit, format_scores, warn_if_useless
from sparsetrain.cli.own_class import OwnClass
from sparsetrain.cli.stop import StopSignals
from sparsetrain.cli.unseen import tell_unseen
from sparsetrain.cli.which import predictor_of


def evaluate(
    model: Model,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Labelled rows, parquet or text.")],
    which: Which = "auto",
    batch_size: BatchSize = 4096,
    precision: Precision = None,
    warn_unseen: WarnUnseen = None,
    own: OwnClass = None,
    as_json: AsJson = False,
) -> None:
    """Score a model on labelled data."""
    import sparsetrain as st

    limit = settings_from({"--warn-unseen": warn_unseen}, None, None).data.warn_unseen
    with StopSignals():
        predictor = predictor_of(model, which, precision, own)
        dataset = st.data.Dataset(str(data), predictor.encoder, read_weights=False)
        scores = predictor.evaluate(dataset, batch_size=batch_size)
    warn_if_useless(data.name, scores)
    unseen = tell_unseen(dataset, predictor.encoder, limit)
    emit({**scores, **unseen}, format_scores({data.name: scores}), as_json)

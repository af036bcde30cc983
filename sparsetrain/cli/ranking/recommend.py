# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain recommend`: the best items for each user of a log, by a model that ranks items."""

from pathlib import Path
from typing import Annotated

import typer

from sparsetrain.cli.options import AsJson, SettingOptions, with_settings
from sparsetrain.cli.output import emit, note
from sparsetrain.cli.output_files import replace_file
from sparsetrain.cli.predict import require_output, write_table
from sparsetrain.cli.ranking import IS_RANKING, has_ages, read_log
from sparsetrain.cli.saved_model import Checkpoint, ModelClass, ModelFolder, Precision, load_by
from sparsetrain.cli.stop import StopSignals
from sparsetrain.errors import ConfigError


@with_settings("--user", "--item", "--time-column", general=False)
def recommend(
    settings: SettingOptions,
    model: ModelFolder,
    log: Annotated[
        Path,
        typer.Argument(
            metavar="LOG", help="Log of the users' choices so far, as for train --task ranking."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="File to write, .parquet or .csv; replaced."),
    ],
    k: Annotated[int, typer.Option("--k", min=1, help="Items for each user.")] = 10,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also recommend items that the user has chosen.")
    ] = False,
    checkpoint: Checkpoint = "auto",
    precision: Precision = None,
    model_class: ModelClass = None,
    as_json: AsJson = False,
) -> None:
    """Write the best items for each user of a log: user, rank, item and score."""
    import numpy as np
    import pyarrow as pa

    import sparsetrain as st

    require_output(out, log)
    with StopSignals():
        predictor = load_by(st.load_predictor, model, checkpoint, model_class, precision=precision)
        ranks, encoder = predictor.model, predictor.encoder
        if ranks.all_labels or ranks.target is None or encoder is None:
            raise ConfigError(f"{model} does not rank items: use sparsetrain predict")
        chosen = read_log(settings.resolve(IS_RANKING), [str(log)])
        rows = chosen.queries(ages=has_ages(encoder))
        ids, scores = predictor.recommend(rows, k, include_seen=include_seen)
        row, place = np.nonzero(ids >= 0)
        values = encoder.values("item")
        found = {
            "user": chosen.users.take(pa.array(row)),
            "rank": pa.array(place + 1),
            "item": pa.array([values[each] for each in ids[row, place]]),
            "score": pa.array(scores[row, place]),
        }
        with replace_file(out) as draft:
            write_table(pa.table(found), draft)
    few = int((ids < 0).any(axis=1).sum())
    if few:
        note(f"{few:,} users have fewer than {k:,} items they have not chosen")
    result = {"users": len(ids), "fewer_than_k": few, "out": str(out)}
    emit(result, f"items for {len(ids):,} users written to {out}", as_json)

# SPDX-License-Identifier: Apache-2.0
"""Protocols for evaluating rankings on the command line: how a log is split, and candidates."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsetrain.cli.output import note
from sparsetrain.cli.settings.model_class import model_class
from sparsetrain.cli.settings.resolve import Entry
from sparsetrain.cli.train_files import Files, Rows
from sparsetrain.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    import sparsetrain as st
    from sparsetrain.cli.settings import Settings


IS_RANKING = [Entry("data.task", "ranking", "--task")]  # for commands that read logs


def read_interactions(
    settings: Settings, files: Files
) -> tuple[st.data.Interactions, dict[str, Any]]:
    """Read a log; return it and the arguments of its splits that depend on the model."""
    import sparsetrain as st

    if settings.model.has_labels:
        models = st.models.MODELS.items()
        ranking = ", ".join(n for n, m in models if m.forward is st.models.Model.forward)
        raise ConfigError(
            f"--task ranking: {settings.model.name} learns from labels: use --model {ranking}"
        )
    log = read_log(settings, [str(path) for path in files.train])
    note(f"{len(log):,} interactions of {len(log.users):,} users")
    ages = getattr(settings.model, "ages", False)
    by_user = getattr(settings.model, "history_of", "rows") == "users"
    each = "item" if by_user else model_class(settings.model.name).training_rows
    return log, {"each": each, "ages": ages}


def find_interactions(settings: Settings, files: Files) -> Rows:
    """Split interactions into rows of histories and items."""
    import sparsetrain as st

    data, paths = settings.data, [str(path) for path in files.train]
    shares = {"--valid-share": data.valid_share, "--valid-from": data.valid_from}
    used = [option for option, value in shares.items() if value is not None]
    if len(used) + bool(files.held_out) > 1:
        others = [f"--{name}" for name in files.held_out]
        raise ConfigError(f"{' and '.join([*used, *others])}: use one way to split")
    given = {name: read_log(settings, [path]) for name, path in files.held_out.items()}
    log, how = read_interactions(settings, files)
    if given:
        split = log.split_given(given.get("valid"), given.get("test"), **how)
    elif data.valid_share is not None:
        share = data.valid_share
        split = log.split_random(share, share, seed=data.valid_seed, **how)
    elif data.valid_from is not None:
        split = log.split_time(data.valid_from, **how)
    else:
        split = log.leave_one_out(**how)
    held_out = {name: getattr(split, name) for name in ("valid", "test")}
    held_out = {name: rows for name, rows in held_out.items() if rows.num_rows}
    train: Any = st.data.open_source(split.train)
    read = (*log.files, *(file for each in given.values() for file in each.files))
    train = replace(train, files=read)  # a resumed run checks these files for changes
    rows = split.train.num_rows
    return Rows(train, held_out, paths, len(log.files), split.schema, split.whole, rows)


def rows_to_rank(settings: Settings, data: Path, encoder: Any) -> Any:
    """Return rows with histories unchanged; from a log, make a row for each user's last item."""
    import sparsetrain as st

    with suppress(DataError):  # text files without column names
        source: Any = st.data.open_source(str(data))
        if "history" in source.parts[0].schema.names:
            return source
    log = read_log(settings, [str(data)])
    rows = log.leave_one_out(ages=has_ages(encoder)).test
    if not rows.num_rows:
        raise DataError(
            f"{data}: no user has three interactions or more, but ranking a user's last item needs "
            "them; give a longer log"
        )
    note(f"the last item of each of {rows.num_rows:,} users is ranked, given the earlier items")
    return rows


def has_ages(encoder: Any) -> bool:
    """Return whether histories include the age of each item."""
    return encoder.schema.rule("history").weights is not None


def ranking_options(settings: Settings, trainer: st.Trainer, rows: Any) -> dict[str, Any]:
    """Return the arguments of `evaluate` for held-out rows of a ranking."""
    train = settings.train
    if settings.model.has_labels:
        return {} if train.negatives is None else {"negatives": train.negatives}
    negatives: Any = train.negatives
    if isinstance(negatives, str):
        negatives = _given_negatives(read_log(settings, [negatives]), trainer, rows)
    return {"k": train.k, "negatives": negatives}


def read_log(settings: Settings, paths: list[str]) -> st.data.Interactions:
    """Read interactions from the columns that settings name."""
    import sparsetrain as st

    data = settings.data
    return st.data.Interactions.read(paths, user=data.user, item=data.item, time=data.time_column)


def _given_negatives(log: st.data.Interactions, trainer: st.Trainer, rows: pa.Table) -> np.ndarray:
    """Return the ids (rows, n) of the items that a log lists for the user of each row."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    number = pc.index_in(rows["user"].cast(log.users.type), value_set=log.users)
    if number.null_count:
        user = rows["user"].filter(number.is_null())[0]
        raise DataError(f"--negatives: user {user} has no negatives in the file")
    users = number.combine_chunks().to_numpy()
    begin, end = (np.searchsorted(log.user, users, side) for side in ("left", "right"))
    counts = end - begin
    if (counts != counts[0]).any():
        row = int((counts != counts[0]).argmax())
        raise DataError(
            f"--negatives: user {rows['user'][row]} has {counts[row]} negatives, but the first "
            f"user has {counts[0]}; give all users equally many"
        )
    places = begin[:, None] + np.arange(counts[0])
    items = log.item.take(pa.array(places.ravel())).cast(rows["item"].type.value_type)
    lists = pa.LargeListArray.from_arrays(pa.array(np.arange(len(rows) + 1) * counts[0]), items)
    encoder, model = trainer.encoder, trainer.model
    assert encoder is not None
    known: Mapping[str, Any] = {"user": rows["user"], "history": rows["history"], "item": lists}
    batch = encoder.encode(pa.table(known), require_label=False)
    ids: np.ndarray = model.read(model.target, batch, whole=True).ids
    return ids.reshape(len(rows), -1)

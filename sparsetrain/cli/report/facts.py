# SPDX-License-Identifier: Apache-2.0
"""Facts of one run: its log, its newest manifest, its tables, and scores of rows if requested.

Predictions and labels of all scored rows are in memory: 8 bytes for each row and label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparsetrain.cli.options import SettingOptions
from sparsetrain.cli.output import note
from sparsetrain.cli.ranking import rows_to_rank
from sparsetrain.cli.settings.model_class import import_class
from sparsetrain.errors import CheckpointError

if TYPE_CHECKING:
    import sparsetrain as st

_ROWS = 1 << 16  # rows of a table to read at once
_OF_MODELS = ("manifest.json", "LATEST")  # files of saved models and of runs with checkpoints


class TableFacts(NamedTuple):
    """An embedding table; norms are None for an int8 table."""

    name: str
    rows: int
    width: int
    bytes: int
    mean_norm: float | None
    max_norm: float | None


class Predicted(NamedTuple):
    """Predictions and labels of the rows that have the label, (n,) float32 each."""

    label: str
    is_binary: bool
    predictions: np.ndarray
    labels: np.ndarray


@dataclass
class Facts:
    """Facts about one run, for the page.

    Attributes
    ----------
    name : str
    log : list of dict
    manifest : mapping
        Empty before the first checkpoint.
    profile : StepProfile or None
    steps : int or None
        Steps of the described checkpoint.
    tables : list of TableFacts
    rare : dict from column to share
        Share of training ids in the row of rare values.
    id_shares : tuple of Share
        Shares of missing and unseen ids in the scored rows, by column.
    scores : dict
        Result of `evaluate` on the scored rows.
    predicted : list of Predicted
    importance : dict from column to float
        Result of `permutation_importance` on the scored rows.
    """

    name: str
    log: list[dict[str, Any]]
    manifest: Mapping[str, Any] = field(default_factory=dict)
    profile: st.StepProfile | None = None
    steps: int | None = None
    tables: list[TableFacts] = field(default_factory=list)
    rare: dict[str, float] = field(default_factory=dict)
    id_shares: tuple[Any, ...] = ()
    scores: dict[str, Any] = field(default_factory=dict)
    predicted: list[Predicted] = field(default_factory=list)
    importance: dict[str, float] = field(default_factory=dict)


def read_facts(
    name: str, folder: Path, data: Path | None, checkpoint: str, model_class: str | None
) -> Facts:
    """Read a run; if `data` is given, score it with the run's model.

    Raises
    ------
    CheckpointError
        If the folder does not exist, is not a run or is damaged.
    """
    import sparsetrain as st

    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    run = st.Run(folder)
    facts = Facts(name, run.log())
    if not any(path.match("step-*") or path.name in _OF_MODELS for path in folder.iterdir()):
        if not facts.log:
            raise CheckpointError(f"{folder} is neither a run nor a saved model")
        if data is None:
            return facts  # the run has not saved a checkpoint yet
    facts.manifest = run.manifest()
    profile = run.profile()
    facts.profile = None if profile is None else st.StepProfile.from_dict(profile)
    predictor = st.load_predictor(folder, checkpoint=checkpoint, model=import_class(model_class))
    facts.steps, facts.tables = predictor.steps, list(_tables(predictor))
    if (encoder := predictor.encoder) is not None:
        shares = zip(encoder.columns, encoder.rare_shares, strict=True)
        facts.rare = {column: share for column, share in shares if share is not None}
    if data is not None:
        _score(facts, predictor, data)
    return facts


def _tables(predictor: st.Predictor) -> Iterator[TableFacts]:
    import sparsetrain as st

    for storage, parts in predictor.model.tables().items():
        array = st.runtime.as_numpy(predictor.params[storage])
        for name, own in parts.items():
            rows, width = array[own].shape
            yield TableFacts(name, rows, width, array[own].nbytes, *_norms(array[own]))


def _norms(rows: np.ndarray) -> tuple[float | None, float | None]:
    """Return the mean and the largest norm of rows; None for int8."""
    if rows.dtype.itemsize == 1:
        return None, None
    pieces = (rows[i : i + _ROWS].astype(np.float32) for i in range(0, len(rows), _ROWS))
    norms = np.concatenate([np.linalg.norm(piece, axis=1) for piece in pieces])
    return float(norms.mean()), float(norms.max())


def _score(facts: Facts, predictor: st.Predictor, data: Path) -> None:
    """Score rows, and write the results into `facts`."""
    import sparsetrain as st

    note(f"{facts.name} scores {data}")
    kinds = predictor.model.all_labels
    rows = str(data)
    if not kinds:
        rows = rows_to_rank(SettingOptions().resolve(), data, predictor.encoder)
    dataset = st.data.Dataset(
        rows, predictor.encoder, require_label=bool(kinds), read_weights=False
    )
    plan = (facts.manifest.get("run") or {}).get("plan") or {}
    facts.scores = predictor.evaluate(dataset, group_by=plan.get("group_by"))
    facts.id_shares = dataset.id_shares
    if not kinds:
        return
    if predictor.encoder is not None:
        facts.importance = st.permutation_importance(predictor, str(data))
    found, labels = [], []
    for batch in dataset.batches(4096):
        assert batch.labels is not None
        found.append(predictor.predict([batch]).reshape(len(batch), -1))
        labels.append(batch.labels.reshape(len(batch), -1))
    predictions, wanted = np.concatenate(found), np.concatenate(labels)
    for number, (name, label) in enumerate(kinds.items()):
        if label.num_logits == 1:  # classes and quantiles have several columns
            there = ~np.isnan(wanted[:, number])
            pair = predictions[there, kinds.columns[name].start], wanted[there, number]
            facts.predicted.append(Predicted(name, label.is_yes_or_no, *pair))

# SPDX-License-Identifier: Apache-2.0
"""One training run from files to scores: what `train` and `demo` share.

What can be found wrong is found early: places and files before data are read, every row of the
held-out files before the model is built. The run is saved before it is scored, so that a signal
or a full disk during scoring loses nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsetrain.cli.output import note, warn_if_useless
from sparsetrain.cli.preflight import require_free
from sparsetrain.cli.stop import StopSignals
from sparsetrain.settings import Settings

if TYPE_CHECKING:
    import sparsetrain as st


@dataclass(frozen=True)
class Files:
    """What a run reads and where it is saved; None for what there is not."""

    train: Sequence[Path]
    valid: Path | None = None
    test: Path | None = None
    out: Path | None = None

    @property
    def held_out(self) -> dict[str, str]:
        """The files that are scored, by name."""
        pairs = {"valid": self.valid, "test": self.test}
        return {name: str(path) for name, path in pairs.items() if path is not None}

    @property
    def training(self) -> list[str]:
        """The files that are trained on."""
        return [str(path) for path in self.train]


def run_training(settings: Settings, files: Files, stop: StopSignals) -> dict[str, Any]:
    """Train, save and score.

    Returns
    -------
    dict
        `valid` and `test` (scores or None), `constant_logloss`, `rows`, `seconds`, `rows_per_s`,
        `epochs` (loss of each, and `valid` if there are several), `layout`, `out`, `stopped` (a
        signal's name or None) and `settings`.

    Raises
    ------
    SparsetrainError
        For anything wrong with files, settings, numbers or memory; nothing is then saved.
    """
    _check(files)
    encoder = _fit_encoder(settings, files)
    trainer = _build(settings, encoder)
    with stop.deferred():
        history = trainer.fit(
            files.training,
            validation=files.held_out.get("valid") if settings.train.epochs > 1 else None,
            epochs=settings.train.epochs,
            batch_size=settings.train.batch_size,
            shuffle=settings.train.shuffle,
            progress="auto",
            stop=stop.requested,
        )
        out = _save(trainer, settings, files, history)
    scores = {} if stop.requested() else _score(trainer, files, history)
    return {
        **_result(scores, history),
        "epochs": history["epochs"],
        "layout": str(encoder.layout),
        "out": out,
        "stopped": stop.name,
        "settings": settings.to_dict(),
    }


def _check(files: Files) -> None:
    import sparsetrain as st

    if files.out is not None:
        require_free(files.out)
    st.data.open_source(files.training)
    for path in files.held_out.values():
        st.data.open_source(path)


def _fit_encoder(settings: Settings, files: Files) -> "st.data.Encoder":
    import sparsetrain as st

    others = f" and {len(files.training) - 1} more" if len(files.training) > 1 else ""
    note(f"learning the encoding from {files.training[0]}{others}")
    encoder = st.data.Encoder.fit(files.training, **settings.data.model_dump())
    note(f"layout: {encoder.layout}")
    tables = f"{len(encoder.rows)} tables of {sum(encoder.rows):,} rows in all"
    note(f"{encoder.num_dense} dense inputs, {tables}")
    for path in files.held_out.values():
        _read_through(path, encoder)
    return encoder


def _read_through(path: str, encoder: "st.data.Encoder") -> None:
    """Meet every bad row of a held-out file now rather than after the training."""
    import sparsetrain as st

    for _ in st.data.Dataset(path, encoder).batches(65_536, prefetch=0):
        pass


def _build(settings: Settings, encoder: "st.data.Encoder") -> "st.Trainer":
    import sparsetrain as st

    model = st.models.DLRM(
        rows=encoder.rows,
        num_dense=encoder.num_dense,
        names=encoder.columns,
        **settings.model.model_dump(),
    )
    optimizer = getattr(st.optim, settings.optimizer.name)(**settings.optimizer.arguments())
    return st.Trainer(
        model,
        optimizer=optimizer,
        target=settings.train.target,
        seed=settings.train.seed,
        encoder=encoder,
    )


def _save(
    trainer: "st.Trainer", settings: Settings, files: Files, history: dict[str, Any]
) -> str | None:
    """Save what was learnt; a run that was stopped before its first batch learnt nothing."""
    if files.out is None or not history["rows"]:
        return None
    trainer.save(files.out, extra={"settings": settings.to_dict()})
    note(f"saved to {files.out}")
    return str(files.out)


def _score(trainer: "st.Trainer", files: Files, history: dict[str, Any]) -> dict[str, Any]:
    """Score the held-out files; the last epoch may have scored one of them already."""
    known = {"valid": history["epochs"][-1].get("valid")}
    scores = {
        name: known.get(name) or trainer.evaluate(path) for name, path in files.held_out.items()
    }
    for name, score in scores.items():
        warn_if_useless(name, score)
    return scores


def _result(scores: dict[str, Any], history: dict[str, Any]) -> dict[str, Any]:
    judged = scores.get("test") or scores.get("valid") or {}
    return {
        "valid": scores.get("valid"),
        "test": scores.get("test"),
        "constant_logloss": judged.get("constant_logloss"),
        **{key: history[key] for key in ("rows", "seconds", "rows_per_s")},
    }

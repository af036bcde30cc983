# SPDX-License-Identifier: Apache-2.0
"""The training loop: a step, then the actions that are due (log line, validation, checkpoint).

Only the saved state decides which actions are due. So a run that is killed between a step and its
validation does this validation when it is resumed, exactly as if it had not been interrupted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from sparsetrain.compiler.dead_rows import describe
from sparsetrain.compiler.program_cache import announcing
from sparsetrain.data import Batch, Dataset
from sparsetrain.data.batch import Position
from sparsetrain.errors import ConfigError
from sparsetrain.training.fit.arguments import (
    FitArguments,
    History,
    ReduceLROnPlateau,
    describe_scores,
)
from sparsetrain.training.fit.best import Best
from sparsetrain.training.fit.record import OnLog, Record, explained
from sparsetrain.training.progress import format_count, make_progress
from sparsetrain.training.run import Run
from sparsetrain.training.run.state import RunState

VALIDATION_BATCH = 4096


class Fit:
    """One call of `Trainer.fit`.

    Parameters
    ----------
    trainer : Trainer
    dataset, held_out : Dataset
        Training rows; validation rows or None.
    plan : FitArguments
    state : RunState
        Initial state; changed as the run proceeds.
    run : Run or None
        Folder for the log and the checkpoints, including the best checkpoint.
    progress : "auto", None or Progress
    stop : callable or None
        Called after each batch; if it returns True, the run ends there.
    on_epoch : callable or None
        Called after each epoch.
    on_log : callable or None
        Called with each line of the log.
    """

    def __init__(
        self,
        trainer: Any,
        dataset: Dataset,
        held_out: Dataset | None,
        plan: FitArguments,
        state: RunState,
        run: Run | None,
        progress: Any,
        stop: Callable[[], bool] | None,
        on_epoch: Callable[[dict[str, Any]], object] | None,
        on_log: OnLog | None,
    ) -> None:
        if plan.reduce_lr is not None and trainer.optimizer.number("lr", 1) is None:
            name = trainer.optimizer.formula.name
            raise ConfigError(f"reduce_lr: {name} has no learning rate named lr: remove reduce_lr")
        self._trainer, self._dataset, self._held_out = trainer, dataset, held_out
        self._plan, self._state = plan, state
        self._record = Record(run, plan.group_by is not None, on_log)
        self._best = Best(plan.early_stopping, run)
        make_progress(progress)  # raises if it is invalid
        self._progress, self._stop = progress, stop or (lambda: False)
        self._on_epoch = on_epoch or (lambda epoch: None)
        self._stopped = self._compiles = False
        self._rows, self._seconds = 0, 0.0  # rows and seconds of this call only
        self._is_click = trainer.model.all_labels.is_yes_or_no
        self._labels: set[float] = set()  # distinct labels seen, until there are two

    def run(self) -> History:
        """Train until the last epoch, `stop` or early stopping; return `fit`'s history."""
        # If the compiler lacks disk space, fail now and not after an epoch.
        with announcing(self._note_compiling):
            self._trainer.compile(scores=self._held_out is not None)
        with self._record.open(self._trainer, self._state):
            self._trainer.state.lr_scale = self._state.lr_scale
            try:
                self._train_epochs()
            finally:
                self._trainer.state.lr_scale = 1.0
            self._record.finish(self._trainer, self._state)
        return self._history(self._end_with_the_best())

    def _note_compiling(self, kept: bool) -> None:
        if not self._compiles:
            once = " (once per machine and model)" if kept else ""
            self._note(f"compiling {type(self._trainer.model).__name__}{once}")
            for line in describe(self._trainer.program.spared):
                self._note(line)
        self._compiles = True

    def _train_epochs(self) -> None:
        self._settle()
        while self._goes_on() and self._state.position.epoch < self._plan.until:
            self._epoch()

    def _goes_on(self) -> bool:
        return not (self._stopped or self._state.ended)

    def _end_with_the_best(self) -> bool:
        """Restore the best weights if early stopping asks for it; return whether that was done."""
        rule, best = self._plan.early_stopping, self._state.best
        if self._stopped or best is None or rule.patience is None:
            return False
        last, step = self._trainer.steps, best["step"]
        why_not = self._best.restore_(self._trainer, step)
        if why_not is not None:
            self._note(f"the best validation was step {step:,}; {why_not}, these are the last")
        elif step != last:
            self._note(
                f"the weights are from step {step:,} of {last:,}, the best validation: "
                f"{rule.monitor} {best['value']:.4f}"
            )
        return why_not is None

    def _note(self, text: str) -> None:
        make_progress(self._progress).note(text)

    def _epoch(self) -> None:
        """Train on the rest of the epoch."""
        start = self._state.position
        rows = self._dataset.batches(
            self._plan.batch_size, seed=self._plan.seed, epoch=start.epoch, position=start
        )
        batches = self._trainer.prefetch(rows) if self._trainer.trains else iter(())
        total = self._dataset.num_rows
        progress = make_progress(self._progress)
        title = f"epoch {start.epoch + 1} of {self._plan.until}"
        progress.start(None if total is None else total - start.row, title)
        try:
            self._train(batches, progress, start.epoch)
            if len(self._labels) == 1 and not self._state.epochs:
                progress.note(_one_label(*self._labels))
        finally:
            progress.finish()
            _close(batches)
        if self._state.position.epoch > start.epoch:
            self._state.end_epoch()
            self._trainer.epochs = self._state.position.epoch
            if not self._stopped:
                self._settle()
            self._on_epoch(dict(self._state.epochs[-1]))

    def _train(self, batches: Iterator[Batch], progress: Any, epoch: int) -> None:
        began = time.perf_counter()
        for batch in batches:
            before = self._trainer.arithmetic.logged
            loss = self._step(batch, began)
            progress.advance(len(batch), loss)
            if change := self._trainer.arithmetic.change(before):
                progress.note(f"step {self._trainer.steps:,}: {change}")
            self._stopped = self._stop()
            if not self._goes_on():
                return
            if self._state.position.epoch == epoch:
                self._settle()
                if not self._goes_on():
                    return
            began = time.perf_counter()
        self._state.position = Position(epoch + 1)  # a user's own batches have no position

    def _step(self, batch: Batch, began: float) -> float:
        at, rows = self._state.position, len(batch)
        with explained(self._trainer, batch, at, self._record.latest, self._plan.check_numerics):
            loss = float(self._trainer.step(batch))
        if len(self._labels) < 2 and self._is_click and batch.labels is not None:
            self._labels |= {float(batch.labels.min()), float(batch.labels.max())}
        after = batch.position or Position(at.epoch, at.row + rows, at.batch + 1)
        seconds = time.perf_counter() - began
        self._state.add(rows, loss, seconds, after)
        self._rows, self._seconds = self._rows + rows, self._seconds + seconds
        return loss

    def _settle(self) -> None:
        """Log, validate and save if these are due at this step and not yet done."""
        step, better = self._trainer.steps, False
        self._record.log_training(self._trainer, self._state)
        if self._held_out is not None and self._validation_is_due(step):
            try:
                scores = self._validate(self._held_out)
            except Exception:
                self._record.save(self._trainer, self._state, best=False)  # due again on resume
                raise
            if scores is None:
                return
            epoch = f"epoch {len(self._state.epochs)} is over, " * self._state.at_epoch_end
            self._note(f"{epoch}step {step:,}: {describe_scores(scores)}")
            better = self._judge(step, scores)
            self._record.log_validation(self._trainer, self._state)
        if self._state.at_epoch_end and self._state.validated == step:
            self._state.epochs[-1]["valid"] = self._state.scores
        if better or self._state.at_epoch_end or self._record.is_due(step):
            self._record.save(self._trainer, self._state, best=better)

    def _validation_is_due(self, step: int) -> bool:
        every = self._plan.validate_every
        epoch, epochs = self._state.position.epoch, self._plan.validate_epochs
        at_end = self._state.at_epoch_end and (epoch % epochs == 0 or epoch == self._plan.until)
        due = at_end or bool(every and step and step % every == 0)
        return due and self._state.validated != step

    def _validate(self, held_out: Dataset) -> dict[str, Any] | None:
        """Return the scores, or None if `stop` ended the validation, which then stays due."""
        scores = self._trainer._evaluate(
            held_out,
            batch_size=VALIDATION_BATCH,
            group_by=self._plan.group_by,
            stop=self._stop,
            k=self._plan.k,
        )
        self._stopped = self._stopped or scores is None
        if self._state.validated < 0:
            held_out._warn_of_unknown()
        if scores is not None and self._state.best is None:
            self._plan.require_defined(scores)
        return scores

    def _judge(self, step: int, scores: dict[str, Any]) -> bool:
        """Record the scores, and return whether they are the best so far."""
        state, rule = self._state, self._plan.early_stopping
        state.scores, state.validated = scores, step
        value = scores[str(rule.monitor)]
        better = rule.is_better(value, state.best["value"] if state.best else None)
        state.since_best = 0 if better else state.since_best + 1
        if better:
            state.best = {"step": step, "value": float(value)}
            self._best.keep(self._trainer)
        state.ended = rule.patience is not None and state.since_best >= rule.patience
        if self._plan.reduce_lr is not None and not state.ended:
            self._reduce_lr(self._plan.reduce_lr)
        return better

    def _reduce_lr(self, rule: ReduceLROnPlateau) -> None:
        if not rule.is_due(self._state.since_best):
            return
        trainer = self._trainer
        self._state.lr_scale *= rule.factor
        trainer.state.lr_scale = self._state.lr_scale
        lr = trainer.optimizer.number("lr", trainer.state.step + 1)
        assert lr is not None
        self._note(
            f"step {trainer.steps:,}: no better {self._plan.early_stopping.monitor} for "
            f"{format_count(self._state.since_best, 'validation')}: the learning rate becomes "
            f"{lr * self._state.lr_scale:.4g}"
        )

    def _history(self, best: bool) -> History:
        state = self._state
        epochs = [*state.epochs, *([state.epoch()] if state.rows else [])]
        return History(
            rows=self._rows,
            seconds=self._seconds,
            rows_per_s=self._rows / max(self._seconds, 1e-9),
            loss=epochs[-1]["loss"] if epochs else None,
            epochs=epochs,
            stopped=self._stopped,
            stopped_early=state.ended,
            best=state.best,
            checkpoint="best" if best else "latest",
        )


def _one_label(label: float) -> str:
    return (
        f"warning: every label was {label:g}: nothing can be learnt from them, and their AUC is "
        "undefined"
    )


def _close(iterator: Any) -> None:
    """Close a generator now, so that its background thread stops."""
    with contextlib.suppress(AttributeError):
        iterator.close()

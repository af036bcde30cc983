# SPDX-License-Identifier: Apache-2.0
"""The table of checks. Each takes the subject, and a flag to inject a fault that it must find.

A fault is injected after the code under test has run, into the value that the check reads: a
gradient that is off by a thousandth, one flipped bit of a weight, one lost duplicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sparsetrain import optim, runtime
from sparsetrain.backend import backends, host
from sparsetrain.compiler.dead_rows import keep_dead_rows
from sparsetrain.compiler.program import Program
from sparsetrain.data import Batch
from sparsetrain.models import SASRec
from sparsetrain.runtime.threads import num_threads, set_num_threads
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.training.step import loss_inputs
from sparsetrain.training.trainer import Trainer
from sparsetrain.verify.killed import check_killed
from sparsetrain.verify.outcome import Outcome, count_other_bits, same_bits
from sparsetrain.verify.subject import Subject, flip_bit_
from sparsetrain.verify.widen import widen_arrays, widen_function

GRADIENT_BOUND = 1e-4  # relative to the norm of a parameter's gradient
_STEP, _DIRECTIONS, _TRIES = 1e-8, 2, 3
_RATES = {"sgd": 0.05, "momentum": 0.05, "adagrad": 0.05, "adam": 0.01, "adamw": 0.01}


def check_gradients(subject: Subject, inject: bool) -> Outcome:
    """Compare float32 gradients with float64 central differences along random directions.

    By chance, an argument of ReLU may be so close to 0 that its sign is wrong in float32. But a
    wrong gradient is wrong in every batch, so the bound must hold in only one of a few batches.
    """
    loss = Program(widen_function(subject.model.export(), "loss"), "loss", "cpu")
    for number in range(min(_TRIES, len(subject.batches))):
        errors = _gradient_errors(subject, number, loss, 1.001 if inject else 1.0)
        worst = max(errors, key=lambda name: errors[name])
        if errors[worst] <= GRADIENT_BOUND:
            break
    return Outcome(
        f"{len(errors)} parameters, sparse and dense, with differences in float64; worst: {worst}",
        GRADIENT_BOUND,
        errors[worst],
        "of its norm",
    )


def _gradient_errors(
    subject: Subject, number: int, loss: Program, factor: float
) -> dict[str, float]:
    trainer, inputs = subject.trainer(optim.sgd(0.0)), subject.inputs(number)
    _, gradients = subject.program(trainer.params, inputs)
    at, wide = widen_arrays(trainer.params), widen_arrays(inputs)
    rng, rows = np.random.default_rng(0), subject.rows(inputs)
    errors: dict[str, float] = {}
    for name, gradient in gradients.items():
        found = _wide_rows(gradient, rows.get(name), at[name]) * factor
        norm = float(np.linalg.norm(found))
        for _ in range(_DIRECTIONS):
            # Directions lean towards the gradient, so that a wrong length of it is noticed.
            direction = rng.standard_normal(found.shape) + found / max(norm, 1e-30)
            where = rows.get(name, slice(None))
            before, change = at[name][where].copy(), _STEP * direction
            losses = []
            for sign in (1, -1):
                at[name][where] = before + sign * change
                losses.append(float(runtime.as_numpy(loss(at, wide))))
            at[name][where] = before
            difference = (losses[0] - losses[1]) / (2 * _STEP)
            error = abs(float(np.sum(found * direction)) - difference) / max(norm, 1e-8)
            errors[name] = _worse(errors.get(name, 0.0), error)
    return errors


def _worse(before: float, error: float) -> float:
    """Return the larger error; NaN counts as the largest."""
    return max(before, np.inf if np.isnan(error) else error)


def _wide_rows(gradient: Any, rows: np.ndarray | None, param: np.ndarray) -> np.ndarray:
    """Return a gradient in float64; if it is row-sparse, only `rows`, with duplicates summed."""
    if not isinstance(gradient, RowSparse):
        return runtime.as_numpy(gradient).astype("f8")
    indices, values = _entries(gradient)
    rows = np.arange(gradient.num_rows) if rows is None else rows
    found = np.zeros((len(rows), param.shape[-1]))
    np.add.at(found, np.searchsorted(rows, indices), values)
    return found


def _entries(gradient: RowSparse) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and the float64 values of each entry, without padding."""
    indices = runtime.as_numpy(gradient.indices).astype("i8")
    values = runtime.as_numpy(gradient.values).astype("f8")
    if gradient.source is not None:
        values = values[runtime.as_numpy(gradient.source)]
    inside = indices < gradient.num_rows
    return indices[inside], values[inside]


def check_sparse_is_dense(subject: Subject, inject: bool) -> Outcome:
    """Compare sparse updates in exact mode with dense updates, for each formula."""
    others = total = 0
    for name, rate in _RATES.items():
        make = partial(optim.OPTIMIZERS[name], rate)
        exact = _train(subject.trainer(make(mode="exact", update="sparse")), subject.batches)
        dense = _train(subject.trainer(make(mode="dense")), subject.batches)
        if inject:
            flip_bit_(exact)
        found, expected = exact.state_dict(), dense.state_dict()
        differ, count = count_other_bits(
            {name: found[name] for name in found if name in expected}, expected
        )
        others, total = others + differ, total + count
    names = ", ".join(_RATES)
    steps = len(subject.batches)
    return same_bits(f"{total:,} weights and slots of {names}, {steps} steps", others)


def _train(trainer: Trainer, batches: Iterable[Batch]) -> Trainer:
    """Train with the shared gradient program and the optimizer, not with the trainer's own step."""
    for batch in batches:
        inputs = loss_inputs(trainer, batch)
        read = trainer.model.rows_read(inputs)
        loss, gradients = trainer.program(trainer.params.rows(read), inputs)
        trainer.optimizer.apply_(trainer.params, gradients, trainer.state, loss=loss)
    return trainer


def check_untouched(subject: Subject, inject: bool) -> Outcome:
    """Compare rows that the batch does not look up, before and after steps in lazy mode."""
    trainer = subject.trainer(optim.adam(0.01))
    batch = subject.batches[0]
    touched = subject.rows(loss_inputs(trainer, batch))
    masks = {
        name: np.isin(np.arange(trainer.params[name].shape[0]), rows, invert=True)
        for name, rows in touched.items()
    }
    before = dict(_rows_of(trainer, masks))
    for _ in range(3):
        trainer.step(batch)
    if inject:
        flip_bit_(trainer, np.flatnonzero(next(iter(masks.values()))).tolist())
    others, total = count_other_bits(before, dict(_rows_of(trainer, masks)))
    rows = sum(int(mask.sum()) for mask in masks.values())
    named = sum(map(len, touched.values()))
    if not rows:
        return Outcome("every row was touched", skipped=True)
    compared = f"{rows:,} rows ({total:,} numbers) beside {named:,} that adam changed"
    return same_bits(compared, others)


def _rows_of(trainer: Trainer, masks: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    for name, mask in masks.items():
        yield name, runtime.as_numpy(trainer.params[name])[mask]
        for slot, tensor in trainer.state[name].items():
            yield f"{name}:{slot}", runtime.as_numpy(tensor)[mask]


def check_duplicates(subject: Subject, inject: bool) -> Outcome:
    """Compare an SGD step from zeros at rate 1 (minus the sum) with a sum in float64."""
    trainer = subject.trainer(optim.sgd(1.0))
    _, gradients = subject.program(trainer.params, subject.inputs())
    worst, bound, entries, distinct = 0.0, 0.0, 0, 0
    for name, gradient in gradients.items():
        if not isinstance(gradient, RowSparse):
            continue
        indices, values = _entries(gradient)
        rows, place, counts = np.unique(indices, return_inverse=True, return_counts=True)
        sums, sizes = (np.zeros((len(rows), gradient.width)) for _ in range(2))
        np.add.at(sums, place, values)
        np.add.at(sizes, place, np.abs(values))
        if inject:
            gradient = _without_a_duplicate(gradient, indices, values, counts[place])
        zeros = {name: runtime.as_tensor(np.zeros(trainer.params[name].shape, "f4"))}
        state = trainer.optimizer.init(zeros)
        trainer.optimizer.apply_(zeros, {name: gradient}, state)
        errors = np.abs(-runtime.as_numpy(zeros[name])[rows] - sums)
        worst = _worse(worst, float((errors / np.maximum(sizes, 1e-30)).max()))
        bound = max(bound, float(counts.max()) * 2.0**-24)
        entries, distinct = entries + len(indices), distinct + len(rows)
    if entries == distinct:
        return Outcome("no id occurs twice in the first batch", skipped=True)
    return Outcome(
        f"{entries:,} entries of {distinct:,} rows with a sum in float64",
        bound,
        worst,
        "of the sum of sizes",
    )


def _without_a_duplicate(
    gradient: RowSparse, indices: np.ndarray, values: np.ndarray, counts: np.ndarray
) -> RowSparse:
    """Drop the duplicated entry with the largest value divided by its row's number of entries."""
    shared = np.where(counts > 1, np.abs(values).max(axis=1) / counts, -1.0)
    kept = np.arange(len(indices)) != int(np.argmax(shared))
    return RowSparse.from_numpy(indices[kept], values[kept].astype("f4"), gradient.num_rows)


def check_threads(subject: Subject, inject: bool) -> Outcome:
    """Compare weights and slots after steps on all threads, on one thread, and on all again."""
    most = num_threads()
    results = []
    try:
        for threads in (most, 1, most):
            set_num_threads(threads)
            trainer = subject.trainer()
            for batch in subject.batches:
                trainer.step(batch)
            if inject and threads == 1:
                flip_bit_(trainer)
            results.append(trainer.state_dict())
    finally:
        set_num_threads(most)
    counted = [count_other_bits(results[0], other) for other in results[1:]]
    others = sum(differ for differ, _ in counted)
    numbers = f"{counted[0][1]:,} weights and slots"
    return same_bits(f"{numbers}: {most} threads, 1 thread, {most} again", others)


def check_dead_rows(subject: Subject, inject: bool) -> Outcome:
    """Compare a small SASRec and the model with and without dead-row elimination."""
    lengths = np.random.default_rng(0).integers(0, 13, 64)
    sasrec = SASRec({"history": 60, "item": 60}, dim=8, length=12)
    ids = np.random.default_rng(1).integers(0, 60, lengths.sum())
    histories = {"history": ids, "history_ends": lengths.cumsum()}
    own = subject.model.export(), "loss", subject.trainer().params, subject.inputs()
    found, wanted, operators = {}, {}, 0
    for module, function, params, inputs in (
        (sasrec.export(), "query", sasrec.initialize(0), histories),
        own,
    ):
        program = Program(module, function, "cpu")
        if not program.spared:
            continue
        with keep_dead_rows():
            whole = Program(module, function, "cpu")
        name = f"{function} {operators}"
        found[name], wanted[name] = (
            runtime.as_numpy(each(params, inputs)).copy() for each in (program, whole)
        )
        operators += len(program.spared)
    if inject:
        first = next(iter(found.values())).reshape(-1).view("u4")
        first[-1] ^= 1
    others, total = count_other_bits(found, wanted)
    return same_bits(f"{total:,} results, of {operators} operators on fewer rows", others)


def check_cuda(subject: Subject, inject: bool) -> Outcome:
    """Compare weights and slots after the same steps on the CPU and on the GPU."""
    all_ = [b for b in backends().values() if b is not host()]
    others = [b.kind for b in all_ if b.unavailable_reason() is None]
    if not others:
        return Outcome("no CUDA device", skipped=True)
    arrays = []
    for target in ("cpu", others[0]):
        trainer = subject.trainer(optim.adagrad(0.02), target)
        for batch in subject.batches:
            trainer.step(batch)
        arrays.append(trainer.state_dict())
    on_cpu, on_gpu = arrays
    worst = 0.0
    for name, expected in on_cpu.items():
        found = on_gpu[name].astype("f8") * (1.001 if inject else 1.0)
        allowed = 1e-5 + 1e-4 * np.abs(expected)
        worst = _worse(worst, float((np.abs(found - expected) / allowed).max()))
    return Outcome(
        f"weights and slots after {len(subject.batches)} steps of adagrad, CPU and GPU",
        1,
        worst,
        "of 1e-5 + 1e-4 |w|",
    )


class Check(NamedTuple):
    """A promise of the package, and the function that checks it."""

    name: str
    promise: str
    run: Callable[[Subject, bool], Outcome]


CHECKS = {
    check.name: check
    for check in (
        Check("gradients", "gradients match the model", check_gradients),
        Check("sparse-is-dense", "exact mode has the bits of a dense one", check_sparse_is_dense),
        Check("untouched", "untouched rows keep their bits", check_untouched),
        Check("duplicates", "duplicate ids are summed", check_duplicates),
        Check("threads", "the same bits on any threads, in any run", check_threads),
        Check("dead-rows", "rows that nothing reads change no bit", check_dead_rows),
        Check("killed", "a killed run resumes to the same bits", check_killed),
        Check("cuda", "CPU and GPU agree", check_cuda),
    )
}

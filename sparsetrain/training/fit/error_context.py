# SPDX-License-Identifier: Apache-2.0
"""Context for an error in a step: the batch, the memory in use, the last checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparsetrain.data.batch import Batch, Position
from sparsetrain.errors import NumericalError, ResourceError
from sparsetrain.training.trained_model import TrainedModel

# How hosts, TVM and CUDA say that there is no memory.
_NO_MEMORY = ("std::bad_alloc", "out of memory", "OUT_OF_MEMORY", "cudaErrorMemoryAllocation")


@contextlib.contextmanager
def explained(
    trainer: TrainedModel, batch: Batch, at: Position, saved: Path | None, check_numerics: bool
) -> Iterator[None]:
    """Add to an error of a step the place in the data and what is left of the run.

    Raises
    ------
    NumericalError
        With the batch's position and, with `check_numerics`, the first value that is not finite.
    ResourceError
        For any error that means that memory is used up.
    """
    try:
        yield
    except NumericalError as error:
        first = trainer.first_nonfinite(batch) if check_numerics else None
        found = f"; {first}" if first else ""
        raise NumericalError(
            f"{error} ({_place(batch, at)}{found}){name_checkpoint(saved)}"
        ) from None
    except Exception as error:
        if not _is_memory(error):
            raise
        with trainer.snapshot(current=False) as state:
            memory = describe_memory(state.arrays)
        raise ResourceError(
            f"out of memory in step {trainer.steps + 1} ({_place(batch, at)}): {memory}; a smaller "
            f"batch needs less{name_checkpoint(saved)}"
        ) from error


def describe_memory(arrays: Any) -> str:
    """Say what parameters and slots take, and the largest of them.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Named as in `Trainer.state_dict`; a slot counts with its parameter.
    """
    sizes: dict[str, int] = {}
    for name, array in arrays.items():
        owner = name.partition(":")[0]
        sizes[owner] = sizes.get(owner, 0) + array.nbytes
    largest = max(sizes, key=sizes.__getitem__)
    total = sum(sizes.values())
    return (
        f"parameters and their slots take {total:,} bytes, the largest, {largest!r}, "
        f"{sizes[largest]:,} of them"
    )


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY)


def _place(batch: Batch, at: Position) -> str:
    rows = f"rows {at.row:,} to {at.row + len(batch) - 1:,}"
    return f"epoch {at.epoch}, batch {at.batch}: {rows} in the epoch's order"


def name_checkpoint(saved: Path | None) -> str:
    """Return the end of a message: what is left of the run."""
    return f"; the last checkpoint is {saved}" if saved else ""

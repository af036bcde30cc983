# SPDX-License-Identifier: Apache-2.0
"""Number of processes that a launcher started, from its environment variables."""

import os

# Open MPI; MPICH and Intel MPI; srun; torchrun. An sbatch script without srun sets none of these.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK")


def processes_started() -> int:
    """Return how many processes were started together; 1 without a launcher."""
    return max((number for name in _SIZES if (number := _number(name)) is not None), default=1)


def rank() -> int:
    """Return this process's rank; 0 without a launcher."""
    return max((number for name in _RANKS if (number := _number(name)) is not None), default=0)


def describe_process() -> str:
    """Return this process's rank from the launcher's variables, for messages before MPI starts."""
    return f"rank {rank()} of {processes_started()}"


def is_first() -> bool:
    """Return whether this is the first process, which prints for all processes."""
    return processes_started() == 1 or rank() == 0


def is_torchrun() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None

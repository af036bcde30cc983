# SPDX-License-Identifier: Apache-2.0
"""Processes that a launcher started together, of which each runs the command."""

from typing import Any

from sparsetrain.system.launcher import is_torchrun


def joined(shard: Any = "auto", parts: int | None = None) -> Any:
    """The group of these processes; see `sparsetrain.parallel.mpi` for the parameters."""
    import sparsetrain as st

    return (st.parallel.torch if is_torchrun() else st.parallel.mpi)(shard, parts)

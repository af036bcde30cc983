# SPDX-License-Identifier: Apache-2.0
"""Temporary tensors of a step, and a bound on TVM's pool, which keeps blocks of all sizes."""

from __future__ import annotations

from collections.abc import Iterable

import tvm

from sparsetrain.backend import backend_at
from sparsetrain.runtime.tensors import NDArray


def scratch_tensor(shape: tuple[int, ...], dtype: str, like: NDArray) -> NDArray:
    """Allocate uninitialized memory on the device of `like`, valid during one step."""
    scratch: NDArray = backend_at(like).scratch(shape, dtype)
    return scratch


Sizes = tuple[tuple[int, ...], ...]

_MAX_SIZES = 16  # a training run has two batch sizes, or with bags a new one in every step
_seen_sizes: set[Sizes] = set()


def limit_pool(tensors: Iterable[NDArray]) -> None:
    """Record the shapes of a program's next arguments; empty the pool when there are too many."""
    sizes = tuple(tuple(tensor.shape) for tensor in tensors)
    if sizes not in _seen_sizes:
        if len(_seen_sizes) >= _MAX_SIZES:
            tvm.get_global_func("vm.builtin.memory_manager.clear")()
            _seen_sizes.clear()
        _seen_sizes.add(sizes)

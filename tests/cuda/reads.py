# SPDX-License-Identifier: Apache-2.0
"""What the host reads of a device's memory, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import tvm

from sparsetrain.runtime import tensors
from tests.cuda.device import on_gpu


@contextmanager
def noting_reads() -> Iterator[list[tuple[int, ...]]]:
    """Collect the shapes of the tensors that are copied to the host meanwhile."""
    read: list[tuple[int, ...]] = []
    copy, to_host = tvm.runtime.Tensor.copyto, tensors._copy_to_host

    def noted_copy(tensor, target, *others):
        if on_gpu(tensor) and not (isinstance(target, tvm.runtime.Tensor) and on_gpu(target)):
            read.append(tuple(map(int, tensor.shape)))
        return copy(tensor, target, *others)

    def noted(tensor):
        read.append(tuple(map(int, tensor.shape)))
        return to_host(tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tvm.runtime.Tensor, "copyto", noted_copy)
        patch.setattr(tensors, "_copy_to_host", noted)
        yield read

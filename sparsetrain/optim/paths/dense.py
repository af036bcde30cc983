# SPDX-License-Identifier: Apache-2.0
"""The dense path of a row-sparse gradient: every row of a table is updated, touched or not.

The entries are added into a buffer that is kept between steps, one kernel updates all rows in
place, and the rows of the buffer that were added to are cleared. Nothing is sorted. Where a
gradient of 0 leaves weights and slots alone, the bits are those of the sparse path.

Cost: N entries to add and clear, V rows of weights, slots and gradient to stream. A buffer of
(V, D) is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from sparsetrain import runtime
from sparsetrain.errors import DataError
from sparsetrain.kernels.table_formats import computed_in
from sparsetrain.optim.param_groups import RowRange
from sparsetrain.optim.paths import dense_kernels as kernels
from sparsetrain.optim.paths.dense_kernels import BLOCK
from sparsetrain.optim.range_update import Target, matrix_shape
from sparsetrain.optim.rule import Rule
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.compiling import host_kernel
from sparsetrain.runtime.tensors import leading_rows
from sparsetrain.sparse_tensor import RowSparse


class _Workspace:
    """Where a gradient's entries are parted."""

    def __init__(self, size: int, dtype: str) -> None:
        self.kind = size, dtype
        self.near_rows, self.far_rows = (runtime.empty((size,), dtype) for _ in range(2))
        self.near_source, self.far_source = (runtime.empty((size,), "int32") for _ in range(2))
        self.counts = runtime.empty((3,), "int64")
        self.counted = runtime.as_numpy(self.counts)

    @property
    def arrays(self) -> tuple[NDArray, ...]:
        """As the kernel takes them."""
        near, far = (self.near_rows, self.near_source), (self.far_rows, self.far_source)
        return (*near, *far, self.counts)


class Near(NamedTuple):
    """The entries of dense rows: rows of the buffer, value rows, the values, and where they lie."""

    rows: NDArray
    source: NDArray
    values: NDArray
    work: _Workspace


class DensePath:
    """Some ranges of a table's rows, and the buffer of their gradient.

    Parameters
    ----------
    parts : sequence of RowRange
        Disjoint, in rising order.
    width : int
        D.
    dtype : str
        Of the table; the gradient has the one that it is computed in.

    Raises
    ------
    ResourceError
        If there is no memory for the buffer.
    """

    def __init__(self, parts: Sequence[RowRange], width: int, dtype: str) -> None:
        self.parts, self.width = tuple(parts), width
        self.stored, self.dtype = dtype, computed_in(dtype)
        heights = [part.end - part.first for part in parts]
        blocks = [-(-height // BLOCK) for height in heights]
        starts = np.cumsum([0, *blocks])
        label = parts[0].label if len(parts) == 1 else f"{parts[0].label} and others"
        shape = (int(starts[-1]) * BLOCK, width)
        self.gradient = runtime.zeros(shape, self.dtype, f"the dense gradient of {label}")
        edges = zip(starts.tolist(), starts.tolist()[1:], strict=False)
        self._blocks = dict(zip(self.parts, edges, strict=True))
        self._work: _Workspace | None = None
        self._first, self._count = _block_rows(parts, blocks)
        first, end = ([getattr(part, edge) for part in parts] for edge in ("first", "end"))
        shift = starts[:-1] * BLOCK - first
        self._zones = [runtime.as_tensor(column, "int64") for column in (first, end, shift)]

    def split(self, gradient: RowSparse) -> tuple[Near, RowSparse | None]:
        """Part a gradient into the entries of these rows and the rest, if there is one.

        Both share memory with the gradient and a workspace, which no other split gets before
        `update_` or `release` gives it back.

        Raises
        ------
        DataError
            If an index lies outside [0, num_rows].
        """
        size, dtype = gradient.nse, str(gradient.indices.dtype)
        pooled = gradient.source is not None
        work = self._workspace(size, dtype)
        source = gradient.source if pooled else work.near_source
        rows = gradient.num_rows
        _part_kernel(dtype, pooled)(gradient.indices, source, *self._zones, *work.arrays, rows)
        here, there, outside = (int(count) for count in work.counted)
        if outside:
            raise DataError(f"{outside} of {size} row indices lie outside the {rows} rows")
        near = Near(
            leading_rows(work.near_rows, here),
            leading_rows(work.near_source, here),
            gradient.values,
            work,
        )
        if not there:
            return near, None
        others = leading_rows(work.far_rows, there)
        drawn = leading_rows(work.far_source, there)
        return near, replace(gradient, indices=others, source=drawn, coalesced=False)

    def _workspace(self, size: int, dtype: str) -> _Workspace:
        """The last step's, if of this size: allocating takes longer than parting a small batch."""
        work, self._work = self._work, None
        if work is None or work.kind != (size, dtype):
            work = _Workspace(size, dtype)
        return work

    def release(self, near: Near) -> None:
        """Let the next split overwrite what this one found."""
        self._work = near.work

    def update_(
        self, target: Target, near: Near, scalars_of: Callable[[Rule], Sequence[float]]
    ) -> None:
        """Add the entries, update all rows of `target`, clear the buffer, release `near`."""
        variant = self.width, self.dtype, str(near.rows.dtype)
        try:
            _add_kernel(*variant)(near.rows, near.source, near.values, self.gradient)
            for rule, parts in groupby(self.parts, key=lambda part: part.rule):
                blocks = [edge for part in parts for edge in self._blocks[part]]
                self._update_(target, rule, scalars_of(rule), (blocks[0], blocks[-1]))
        finally:  # the next step trusts that it is zero
            _clear_kernel(*variant)(near.rows, self.gradient)
            self.release(near)

    def _update_(
        self, target: Target, rule: Rule, scalars: Sequence[float], blocks: tuple[int, int]
    ) -> None:
        rows = matrix_shape(target.param)[0]
        _update_rows_kernel(rule.spec, self.width, self.stored)(
            self.gradient,
            *target.views(rule.spec, rows, self.width),
            self._first,
            self._count,
            *scalars,
            *blocks,
        )


def _block_rows(parts: Sequence[RowRange], blocks: Sequence[int]) -> tuple[NDArray, NDArray]:
    """First row and number of rows of each block."""
    firsts = [p.first + BLOCK * np.arange(n) for p, n in zip(parts, blocks, strict=True)]
    counts = [np.minimum(BLOCK, p.end - f) for p, f in zip(parts, firsts, strict=True)]
    return (
        runtime.as_tensor(np.concatenate(firsts).astype(np.int64)),
        runtime.as_tensor(np.concatenate(counts).astype(np.int32)),
    )


_part_kernel = host_kernel("entries by table", kernels.part_kernel)
_add_kernel = host_kernel("adding entries", kernels.add_kernel)
_clear_kernel = host_kernel("clearing entries", kernels.clear_kernel)
_update_rows_kernel = host_kernel("update of all rows", kernels.block_update_kernel)

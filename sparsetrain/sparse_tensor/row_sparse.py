# SPDX-License-Identifier: Apache-2.0
"""`RowSparse`: a tensor with mostly zero rows, the only sparse type in this package.

It is the triple of `tf.IndexedSlices`, with three differences. Duplicate indices **sum**:
``dense[indices[n]] += values[n]``. An index equal to `num_rows` is padding. And an entry may name
its value row, so the gradient of a pooled bag has one value row per bag instead of one per
looked-up id.

Cost: memory and time depend on N and D, never on `num_rows`, except in `to_dense`, `from_scipy` and
`to_scipy`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.errors import DataError, ResourceError
from sparsetrain.runtime.tensors import on_host
from sparsetrain.sparse_tensor import algebra, checks
from sparsetrain.sparse_tensor.algebra import eager
from sparsetrain.sparse_tensor.arithmetic import Arithmetic
from sparsetrain.sparse_tensor.coalesce import CoalescePlan, make_plan, segment_sum
from sparsetrain.system.html import describe
from sparsetrain.system.memory import check_fits_memory

if TYPE_CHECKING:
    import scipy.sparse

DENSE_LIMIT_BYTES = 2**30


@dataclass(frozen=True, eq=False, repr=False)
class RowSparse(Arithmetic):
    """A (num_rows, D) tensor given by some of its rows; duplicates sum.

    Leaves are Relax expressions while a program is traced and `tvm.runtime.Tensor` afterwards.
    An index equal to `num_rows` is padding and contributes nothing (as in JAX's BCOO).

    Parameters
    ----------
    indices : (N,) int32 or int64
        Row of each entry, in [0, num_rows]; in any order, with duplicates allowed.
    values : (M, D) float
        Value rows. M is N, unless `source` is given.
    num_rows : int
        Rows of the dense tensor.
    source : (N,) int32, optional
        Entry n uses row ``source[n]`` of `values`; by default row n.
    shape : tuple of int, optional
        Shape of the dense tensor if it is not (num_rows, D), with the same elements in the same
        order: (num_rows,) for a vector, or leading axes with product num_rows.
    coalesced : bool
        Whether indices are known to be unique, sorted and free of padding, and `source` is None.

    Examples
    --------
    >>> import numpy as np
    >>> import sparsetrain as st
    >>> values = np.ones((3, 4), "float32")
    >>> g = st.RowSparse.from_numpy([2, 0, 2], values, num_rows=5)
    >>> g
    RowSparse(5 x 4, float32, nse=3, int64 indices)
    >>> g.coalesce().to_dense().numpy()[2]
    array([2., 2., 2., 2.], dtype=float32)
    """

    indices: Any
    values: Any
    num_rows: int
    source: Any = None
    shape: tuple[int, ...] = ()
    coalesced: bool = False

    def __post_init__(self) -> None:
        for leaf in self.leaves:
            if not isinstance(leaf, runtime.NDArray) and not hasattr(leaf, "ty"):
                raise DataError(
                    f"RowSparse holds tensors, not a {type(leaf).__name__}: "
                    "RowSparse.from_numpy(indices, values, num_rows) makes one of arrays"
                )
        if not self.shape:
            object.__setattr__(self, "shape", (self.num_rows, self.width))
        if prod(self.shape) != self.num_rows * self.width:
            raise DataError(
                f"RowSparse: shape {self.shape} does not hold {self.num_rows} rows of "
                f"width {self.width}"
            )

    @classmethod
    def from_numpy(cls, indices: Any, values: Any, num_rows: int, source: Any = None) -> RowSparse:
        """Copy arrays into a checked `RowSparse`; see the class for shapes.

        Raises
        ------
        DataError
            As in `validate`.
        """
        indices = np.asarray(indices)
        wide = "int32" if indices.dtype.name == "int32" else "int64"  # in any byte order
        if indices.size == 0:
            indices = indices.astype(wide)
        tensor = cls(
            runtime.as_tensor(indices, wide),
            runtime.as_tensor(checks.value_rows(values)),
            checks.whole_rows(num_rows),
            None if source is None else runtime.as_tensor(source, "int32"),
        )
        tensor.validate()
        return tensor

    @classmethod
    def from_scipy(cls, matrix: scipy.sparse.sparray | scipy.sparse.spmatrix) -> RowSparse:
        """Take the non-empty rows of a SciPy sparse matrix; the result is coalesced."""
        rows = matrix.tocsr()
        stored = np.flatnonzero(np.diff(rows.indptr))
        values = np.ascontiguousarray(rows[stored].toarray())
        tensor = cls.from_numpy(stored.astype(np.int64), values, rows.shape[0])
        return replace(tensor, coalesced=True)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError(
            "a RowSparse does not become dense silently: to_dense() has all rows, coalesce() the "
            "touched ones in .indices and .values"
        )

    @property
    def width(self) -> int:
        """D, the number of columns."""
        return int(_shape(self.values)[1])

    @property
    def dtype(self) -> str:
        """Dtype of the values."""
        return algebra.dtype_of(self.values)

    @property
    def nse(self) -> Any:
        """Number of specified entries N, with duplicates and padding; symbolic in a trace."""
        indices = self.indices
        if isinstance(indices, runtime.NDArray):
            return indices.size(0)  # reading its shape takes four times as long
        extent = _shape(indices)[0]
        return int(extent) if isinstance(extent, int) else extent

    @property
    def leaves(self) -> tuple[Any, ...]:
        """The tensors: ``(indices, values)`` or ``(indices, values, source)``."""
        inner = (self.indices, self.values)
        return inner if self.source is None else (*inner, self.source)

    def with_leaves(self, leaves: tuple[Any, ...]) -> RowSparse:
        """Return the same structure with new leaves."""
        indices, values, *source = leaves
        # Skips `__init__`: the shape is already checked, and this runs in every step.
        result = object.__new__(RowSparse)
        inner = {"indices": indices, "values": values, "source": source[0] if source else None}
        result.__dict__.update(self.__dict__ | inner)
        return result

    @property
    def is_traced(self) -> bool:
        """Whether the leaves are Relax expressions."""
        return not isinstance(self.values, runtime.NDArray)

    def plan(self) -> CoalescePlan:
        """Return the plan that coalesces these indices; it depends only on them."""
        return make_plan(self.indices, self.num_rows)

    def coalesce(self, plan: CoalescePlan | None = None) -> RowSparse:
        """Return unique sorted rows, with duplicates summed in their order.

        The bits of the result do not depend on the number of threads.
        """
        if self.coalesced:
            return self
        plan = plan or self.plan()
        if int(plan.order.shape[0]) != self.nse:
            raise DataError(
                f"coalesce: the plan is for {int(plan.order.shape[0])} entries, not {self.nse}"
            )
        values = segment_sum(plan, self.values, self.source)
        return RowSparse(plan.rows, values, self.num_rows, shape=self.shape, coalesced=True)

    def to_dense(self, *, limit_bytes: int | None = DENSE_LIMIT_BYTES) -> Any:
        """Return the dense tensor.

        Parameters
        ----------
        limit_bytes : int or None
            Largest allowed size; None means no limit.

        Raises
        ------
        ResourceError
            If the dense tensor is larger than `limit_bytes` or the available memory.
        """
        size = prod(self.shape) * np.dtype(self.dtype).itemsize
        needs = f"to_dense: shape {self.shape} {self.dtype} needs {size / 2**30:.2f} GiB"
        if limit_bytes is not None and size > limit_bytes:
            limit = f"{limit_bytes / 2**30:.2f}"
            raise ResourceError(
                f"{needs}, above the limit of {limit}; pass limit_bytes=None to allow it"
            )
        try:
            if on_host(self.values):
                check_fits_memory(size)
            return eager(algebra.to_dense, self)
        except (MemoryError, RuntimeError) as error:
            # TVM reports std::bad_alloc as an InternalError.
            if not isinstance(error, MemoryError) and "bad_alloc" not in str(error):
                raise
            raise ResourceError(f"{needs}, more than the available memory") from error

    def to_scipy(self) -> scipy.sparse.csr_array:
        """Return a SciPy CSR matrix (num_rows, D) of coalesced rows, with explicit zeros."""
        import scipy.sparse

        unique = self.coalesce()
        rows, values = runtime.as_numpy(unique.indices), runtime.as_numpy(unique.values)
        columns = np.tile(np.arange(self.width), len(rows))
        entries = (values.ravel(), (np.repeat(rows, self.width), columns))
        return scipy.sparse.coo_array(entries, shape=(self.num_rows, self.width)).tocsr()

    def validate(self) -> None:
        """Check the preconditions of kernels.

        Raises
        ------
        DataError
            For an index outside [0, num_rows], a `source` outside the value rows, wrong shapes,
            dtypes or lengths, or a wrong `coalesced`; the message names the first bad entry.
        """
        indices, values = runtime.as_numpy(self.indices), runtime.as_numpy(self.values)
        source = None if self.source is None else runtime.as_numpy(self.source)
        checks.check_entries(indices, values, source, self.num_rows)
        if self.coalesced:
            checks.check_coalesced(indices, source, self.num_rows)

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.shape))
        rows = algebra.dtype_of(self.indices)
        extra = ", coalesced" if self.coalesced else ""
        pooled = "" if self.source is None else f", {_shape(self.values)[0]} value rows"
        return f"RowSparse({size}, {self.dtype}, nse={self.nse}, {rows} indices{pooled}{extra})"

    def _repr_html_(self) -> str:
        facts: dict[str, Any] = {
            "shape": " x ".join(map(str, self.shape)),
            "dtype": self.dtype,
            "nse": self.nse,
            "indices": algebra.dtype_of(self.indices),
            "coalesced": self.coalesced,
        }
        if not self.is_traced:
            held = sum(runtime.as_numpy(leaf).nbytes for leaf in self.leaves)
            dense = prod(self.shape) * runtime.as_numpy(self.values).itemsize
            facts |= {"bytes": held, "bytes of a dense tensor": dense}
        return describe("RowSparse", facts)


def _shape(leaf: Any) -> Any:
    return leaf.shape if isinstance(leaf, runtime.NDArray) else leaf.ty.shape

# SPDX-License-Identifier: Apache-2.0
"""`TableFormat`: how a table stores its rows, as a value that is asked.

Gradients, slots and activations are in the dtype that rows are `computed` in; a format is known to
those who read or write a row, and they ask it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsetrain.backend import backend_of
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats.noise import keys_of
from sparsetrain.kernels.table_formats.rows import PlainRow, read_plain


@dataclass(frozen=True)
class TableFormat:
    """A storage format; by default rows in the dtype that they are computed in.

    Parameters
    ----------
    dtype : str
        Of the stored elements; it names the format.
    array : np.dtype
        NumPy's dtype of them.
    computed : str
        Dtype of the arithmetic, of slots and of values of gradients.
    seen : str
        Dtype that kernels of an update declare for the elements.
    beside : int
        Elements of a row beside its numbers, such as a scale.
    rounded : bool
        Whether numbers are stochastically rounded on writes, so that only rows are updated.
    trainable : bool
        Whether rows can be updated at all.
    element : callable
        From (table, row, column) to a number, inside a kernel that reads.
    row : type
        A row inside a kernel that writes.
    packed, unpacked : callable, optional
        From rows (n, D) float32 to the nearest stored ones, and back.
    scales : callable, optional
        From stored rows to the scale of each, not finite where a number of the row is not.
    """

    dtype: str
    array: np.dtype
    computed: str
    seen: str
    beside: int = 0
    rounded: bool = False
    trainable: bool = True
    element: Callable[[Any, Any, Any], Any] = read_plain
    row: type[PlainRow] = PlainRow
    packed: Callable[[np.ndarray], np.ndarray] | None = None
    unpacked: Callable[[np.ndarray], np.ndarray] | None = None
    scales: Callable[[np.ndarray], np.ndarray] | None = None

    @classmethod
    def plain(cls, dtype: str) -> TableFormat:
        """Rows in the dtype that they are computed in."""
        return cls(dtype, np.dtype(dtype), dtype, dtype)

    @property
    def trains_packed(self) -> bool:
        """Whether rows train that hold more than numbers: then matrices of `dtype` are tables."""
        return self.trainable and self.beside > 0

    def width(self, extent: int) -> int:
        """D, the number of weights in a row that is this wide."""
        return extent - self.beside

    def extent(self, width: int) -> int:
        """The stored width of a row of D weights."""
        return width + self.beside

    def rows(self, floats: np.ndarray) -> np.ndarray:
        """Rows (n, D) of float32 as they are stored, rounded to nearest."""
        return self.packed(floats) if self.packed else floats.astype(self.array)

    def floats(self, rows: np.ndarray) -> np.ndarray:
        """A copy of stored rows, (n, D) float32."""
        return self.unpacked(rows) if self.unpacked else rows.astype(np.float32)

    def keys(self, seed: int, parameter: str, step: int) -> tuple[int, ...]:
        """Keys of the random bits that round rows in a step; () where none is rounded."""
        return keys_of(seed, parameter, step) if self.rounded else ()

    def require_trainable(self) -> None:
        """Refuse to train rows that can only be read.

        Raises
        ------
        ConfigError
            With the way out.
        """
        if not self.trainable:
            raise ConfigError(
                f"tables in {self.dtype} are for prediction alone: train the model that they were "
                "made from, or one with table_dtype='int8'"
            )

    def require_target(self, target: Any) -> None:
        """Refuse a target that has no kernels for these rows.

        Raises
        ------
        ConfigError
            Names both and the way out.
        """
        backend = backend_of(target)
        if self.dtype not in backend.row_formats:
            raise ConfigError(
                f"target {backend.kind!r} has no kernels for tables in {self.dtype}: take target "
                "'cpu', or float32 tables"
            )

    def require_dense(self, parameter: str) -> None:
        """Refuse a dense gradient, where only rows are updated.

        Raises
        ------
        ConfigError
            Names the parameter and the way out.
        """
        if self.rounded:
            raise ConfigError(
                f"optimizer: {parameter!r} is {self.dtype}, which takes row-sparse gradients "
                "alone, but its gradient is dense: store it in float32, or remove what makes the "
                "gradient dense"
            )

# SPDX-License-Identifier: Apache-2.0
"""`TableFormat`: how a table stores its rows, as a value.

Gradients, slots and activations have the dtype `computed`; only code that reads or writes rows uses
the format.
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
    """A storage format; by default rows are stored in the dtype of computations.

    Parameters
    ----------
    dtype : str
        Dtype of the stored elements, and the format's name.
    array : np.dtype
        NumPy's dtype of the elements.
    computed : str
        Dtype of arithmetic, slots and gradient values.
    seen : str
        Dtype that update kernels declare for the elements.
    beside : int
        Additional elements per row, such as a scale.
    rounded : bool
        Whether writes round numbers stochastically, so that only touched rows are updated.
    trainable : bool
        Whether rows can be updated at all.
    element : callable
        (table, row, column) -> number, in kernels that read.
    row : type
        Class of a row in kernels that write.
    packed, unpacked : callable, optional
        Rows (n, D) float32 -> nearest stored rows, and back.
    scales : callable, optional
        Stored rows -> scale of each, which is not finite if a number of the row is not.
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
        """Return the format that stores rows in the dtype of computations."""
        return cls(dtype, np.dtype(dtype), dtype, dtype)

    @property
    def trains_packed(self) -> bool:
        """Whether rows are trainable and also hold a scale; an int8 matrix may then be a table."""
        return self.trainable and self.beside > 0

    def width(self, extent: int) -> int:
        """Return D, the number of weights in a row of this stored width."""
        return extent - self.beside

    def extent(self, width: int) -> int:
        """Return the stored width of a row of D weights."""
        return width + self.beside

    def rows(self, floats: np.ndarray) -> np.ndarray:
        """Convert float32 rows (n, D) to stored rows, rounded to nearest."""
        return self.packed(floats) if self.packed else floats.astype(self.array)

    def floats(self, rows: np.ndarray) -> np.ndarray:
        """Return a copy of stored rows as (n, D) float32."""
        return self.unpacked(rows) if self.unpacked else rows.astype(np.float32)

    def keys(self, seed: int, parameter: str, step: int) -> tuple[int, ...]:
        """Return the keys of the random bits that round rows in a step; () without rounding."""
        return keys_of(seed, parameter, step) if self.rounded else ()

    def require_trainable(self) -> None:
        """Refuse to train read-only rows.

        Raises
        ------
        ConfigError
            If they are read-only; the message names the alternatives.
        """
        if not self.trainable:
            raise ConfigError(
                f"tables in {self.dtype} are for prediction alone: train the model that they were "
                "made from, or one with table_dtype='int8'"
            )

    def require_target(self, target: Any) -> None:
        """Refuse a target without kernels for these rows.

        Raises
        ------
        ConfigError
            If there are none; the message names target, dtype and fix.
        """
        backend = backend_of(target)
        if self.dtype not in backend.row_formats:
            raise ConfigError(
                f"target {backend.kind!r} has no kernels for tables in {self.dtype}: take target "
                "'cpu', or float32 tables"
            )

    def require_dense(self, parameter: str) -> None:
        """Refuse a dense gradient if only touched rows are updated.

        Raises
        ------
        ConfigError
            If so; the message names the parameter and the fix.
        """
        if self.rounded:
            raise ConfigError(
                f"optimizer: {parameter!r} is {self.dtype}, which takes row-sparse gradients "
                "alone, but its gradient is dense: store it in float32, or remove what makes the "
                "gradient dense"
            )

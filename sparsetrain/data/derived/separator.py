# SPDX-License-Identifier: Apache-2.0
"""Lists in text, split at a separator.

Brackets around a list, and blanks and quotes around its values, are removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparsetrain.data.derived.kind import TEXTS, Column, Kind, Takes
from sparsetrain.data.ragged import offsets_of
from sparsetrain.data.values.arrow_types import as_plain, require_utf8
from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import require_type

_AROUND = " \t\r\n\"'"


@dataclass(frozen=True)
class Separator(Kind):
    """Text that is split into a list."""

    key: ClassVar[str] = "separator"
    type: ClassVar[pa.DataType] = pa.large_list(pa.large_string())
    takes: ClassVar[Takes] = TEXTS

    separator: str | None = None

    def check(self, where: str) -> None:
        """Refuse an empty separator."""
        require_type(f"{where}.separator", self.separator, str, "the text between values")
        if self.separator == "":
            raise ConfigError(f"{where}: separator is empty; give the text between values")

    def make(self, *columns: Column) -> pa.Array:
        """Return lists of text; null for a missing text."""
        ((array, location),) = columns
        if not pa.types.is_null(array.type):
            require_utf8(array, location, bytes_too=True)
        text = as_plain(array).cast(pa.large_string())
        lists = pc.split_pattern(pc.utf8_trim(text, "[]() \t"), self.separator)
        values = pc.utf8_trim(pc.list_flatten(lists), _AROUND)
        there = pc.not_equal(values, "").to_numpy(zero_copy_only=False)
        rows = pc.list_parent_indices(lists).to_numpy()
        lengths = np.bincount(rows[there], minlength=len(array))
        missing = array.is_null().to_numpy(zero_copy_only=False)
        mask = np.append(missing, False) if missing.any() else None
        return pa.LargeListArray.from_arrays(
            pa.array(offsets_of(lengths), mask=mask), values.filter(pa.array(there))
        )

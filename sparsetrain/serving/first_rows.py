# SPDX-License-Identifier: Apache-2.0
"""Places of features in a model's storage."""

from __future__ import annotations

from typing import Any


def first_rows(model: Any) -> list[int]:
    """The row of the storage at which each feature's table begins."""
    starts = {name: s.start for part in model.tables().values() for name, s in part.items()}
    names = model.config()["names"]
    return [starts[names[owner]] for owner in model.owners()]

# SPDX-License-Identifier: Apache-2.0
"""Ways to combine an element with a value that is written to it: (old, written) -> new."""

from collections.abc import Callable
from typing import Any

from tvm import tirx

COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": tirx.min,
    "max": tirx.max,
    "mean": lambda old, new: (old + new) / tirx.const(2, old.ty.dtype),
}

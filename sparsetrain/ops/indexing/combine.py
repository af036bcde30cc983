# SPDX-License-Identifier: Apache-2.0
"""What becomes of an element to which something is written: (what it is, what comes) -> new."""

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

# SPDX-License-Identifier: Apache-2.0
"""Arguments that the kernels of an update share: the report, the numbers of a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.builder import buffer, extents
from sparsetrain.optim.kernel_spec import KernelSpec


def declare_report() -> Any:
    """Declare the report (n,) int64: element 0 is 0 if the step may be written."""
    return buffer("report", extents(1), "int64")


def declare_numbers() -> Any:
    """Declare the numbers (R, K) float64: a row of scalars for each rule."""
    return buffer("numbers", extents(2), "float64")


def bind_scalars(spec: KernelSpec, dtype: str, numbers: Any, rule: int) -> SimpleNamespace:
    """Read the scalars of a spec, by name, from the row of a rule."""
    return SimpleNamespace(
        **{
            name: T.Bind(tirx.Cast(dtype, numbers[rule, column]))
            for column, name in enumerate(spec.scalars)
        }
    )

# SPDX-License-Identifier: Apache-2.0
"""The CPU backend, for this machine's CPU or any other CPU that LLVM compiles for.

Its modules are imported at first use, so that reading a table does not import the trainer.
"""

from __future__ import annotations

import platform
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from sparsetrain.backend import CPU_MEMORY, Backend, Schedule
from sparsetrain.runtime import lowering
from sparsetrain.runtime.host import has_bf16_dot, host_target, without_forbidden_amx
from sparsetrain.runtime.tensors import NDArray, as_numpy, empty


class Cpu(Backend):
    """The backend for programs that LLVM compiles and the host's threads run."""

    kind, memory, hoists = "llvm", CPU_MEMORY, True
    row_formats = frozenset({"float32", "float64", "float16", "bfloat16", "int8", "uint8"})
    # With 128 ids, updating the rows takes as long as updating a whole table of this size
    # (benchmarks/update.py); with 2,048 ids the size is larger.
    most_weights_dense = 2**17

    def target(self) -> Target:
        return host_target()

    def complete(self, target: Target) -> Target:
        """Return the target without AMX if the operating system does not permit AMX."""
        return without_forbidden_amx(target)

    def describe(self) -> str:
        return str(host_target().attrs.get("mcpu", platform.machine()))

    def lacks(self, dtype: str, target: Target) -> str | None:
        if dtype != "bfloat16":
            return f"no {self.kind} target computes products of {dtype}"
        if has_bf16_dot(target):
            return None
        name = target.attrs.get("mcpu") or self.kind
        return f"the target {name} has no AVX512_BF16 instructions"

    def kernel(self, name: str, host: Any) -> Any:
        return host

    def schedule(self) -> Schedule:
        from sparsetrain.backends.cpu.schedule import schedule

        return schedule()

    def compile(self, module: tvm.IRModule, target: Target) -> Any:
        """Compile without TVM's pass for common subexpressions, since LLVM has one too.

        TVM's pass fails because it treats the negation of a float as an integer.
        """
        with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
            return tvm.compile(module, lowering.for_llvm(target), tir_pipeline=lowering.PIPELINE)

    @cached_property
    def coalescing(self) -> Any:
        from sparsetrain.backends.cpu import coalesce

        return coalesce

    def scratch(self, shape: tuple[int, ...], dtype: str) -> NDArray:
        return empty(shape, dtype)

    def totals(self, arrays: list[NDArray]) -> list[float]:
        return [np.sum(as_numpy(array)).item() for array in arrays]

    def update_step(self, *arguments: Any) -> Any:
        from sparsetrain.backends.cpu.update import HostStep

        return HostStep(*arguments)

    def training_step(self, trainer: Any) -> Any:
        from sparsetrain.training.step import TrainingStep

        return TrainingStep(trainer)


BACKEND = Cpu()

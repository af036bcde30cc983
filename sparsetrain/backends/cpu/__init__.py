# SPDX-License-Identifier: Apache-2.0
"""The CPU: this machine's, or any that LLVM compiles for.

Modules are imported when they are used, so that reading a table imports no trainer.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import tvm
from tvm.target import Target

from sparsetrain.backend import HOST, Backend, Schedule, register
from sparsetrain.errors import ConfigError
from sparsetrain.runtime import lowering
from sparsetrain.runtime.host import has_bf16_dot, host_target, without_forbidden_amx
from sparsetrain.runtime.tensors import NDArray, empty


class Cpu(Backend):
    """See `Backend`."""

    kind, device_type = "llvm", HOST
    is_present = hoists = compiles_apart = keeps_kernels = True
    row_formats = frozenset({"float32", "float64", "float16", "bfloat16", "int8"})
    # benchmarks/update.py finds the crossing there for batches of 128 ids; of 2,048, beyond it.
    most_weights_dense = 2**17

    def unavailable_reason(self) -> None:
        """See `Backend`."""

    def target(self) -> Target:
        """See `Backend`."""
        return host_target()

    def complete(self, target: Target) -> Target:
        """Leave out AMX where the kernel does not permit it."""
        return without_forbidden_amx(target)

    def describe(self) -> str:
        """See `Backend`."""
        return f"{host_target().attrs.get('mcpu', platform.machine())}"

    def lacks(self, dtype: str, target: Target) -> str | None:
        """See `Backend`."""
        if dtype != "bfloat16":
            return f"no {self.kind} target computes products of {dtype}"
        if has_bf16_dot(target):
            return None
        name = target.attrs.get("mcpu") or self.kind
        return f"the target {name} has no AVX512_BF16 instructions"

    def kernel(self, name: str, host: Any) -> Any:
        """See `Backend`."""
        return host

    def schedule(self) -> Schedule:
        """See `Backend`."""
        from sparsetrain.backends.cpu.schedule import schedule

        return schedule()

    def compile(self, module: tvm.IRModule, target: Target) -> Any:
        """Compile without TVM's common-subexpression pass, which LLVM has too.

        TVM's takes a float's negation for an integer, and fails.
        """
        with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
            return tvm.compile(module, target, tir_pipeline=lowering.PIPELINE)

    @property
    def coalescing(self) -> Any:
        """See `Backend`."""
        from sparsetrain.backends.cpu import coalesce

        return coalesce

    def place(self, tensors: list[Any]) -> list[Any]:
        """Give them as they are."""
        return tensors

    def scratch(self, shape: tuple[int, ...], dtype: str) -> NDArray:
        """See `Backend`."""
        return empty(shape, dtype)

    def synchronize(self) -> None:
        """See `Backend`: a call returns when it is done."""

    def update_step(self, *arguments: Any) -> Any:
        """See `Backend`."""
        from sparsetrain.backends.cpu.update import HostStep

        return HostStep(*arguments)

    def training_step(self, trainer: Any, plan: str) -> Any:
        """See `Backend`."""
        from sparsetrain.training.step import TrainingStep

        if plan != "auto":
            raise ConfigError(f"plan={plan!r} is for CUDA; on a CPU leave it out")
        return TrainingStep(trainer)

    def stage(self, trainer: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """Give them as they come."""
        return batches


register(Cpu())

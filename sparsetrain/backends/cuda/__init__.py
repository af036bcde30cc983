# SPDX-License-Identifier: Apache-2.0
"""The CUDA backend, for one NVIDIA device and the CPU that launches its kernels.

`device` describes the hardware; `pool`, `staging` and `streams` manage its memory; `schedule`
lists the passes that compile programs; `kernel_table` lists the kernels that replace CPU kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import tvm
from tvm.s_tir import dlight
from tvm.target import Target

from sparsetrain.backend import Backend, Schedule
from sparsetrain.backends.cuda import device
from sparsetrain.errors import ConfigError
from sparsetrain.runtime.tensors import NDArray


class Cuda(Backend):
    """The backend for kernels on one NVIDIA device, launched by programs on the host."""

    kind, memory, hoists = device.KIND, device.MEMORY, False
    row_formats = frozenset({"float32", "float64", "float16", "bfloat16", "uint8"})
    plans = ("auto", "host", "device")

    @property
    def is_present(self) -> bool:  # type: ignore[override]
        return device.has_driver() and not device.is_hidden()

    def unavailable_reason(self) -> str | None:
        return device.unavailable_reason()

    def target(self) -> Target:
        return device.target()

    def complete(self, target: Target) -> Target:
        """Set the target's host to this machine's CPU, unless it names a host."""
        return device.with_host(target)

    def describe(self) -> str:
        target = self.target()
        halves = self.lacks("bfloat16", target) or "bfloat16 on tensor cores"
        return f"{tvm.cuda().device_name} ({target.attrs['arch']}), which 'auto' takes; {halves}"

    def lacks(self, dtype: str, target: Target) -> str | None:
        if dtype not in ("bfloat16", "float16"):
            return f"no {self.kind} target computes products of {dtype}"
        if device.has_tensor_cores(target):
            return None
        return f"a device of {target.attrs['arch']} has no tensor cores for {dtype}"

    def kernel(self, name: str, host: Any) -> Any:
        from sparsetrain.backends.cuda.kernel_table import KERNELS

        if name not in KERNELS:
            raise ConfigError(f"{name} has kernels only for the CPU: use target='cpu'")
        return KERNELS[name]

    def schedule(self) -> Schedule:
        from sparsetrain.backends.cuda.schedule import schedule

        return schedule()

    def plain_passes(self) -> list[Any]:
        return [dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())]

    def compile(self, module: tvm.IRModule, target: Target) -> Any:
        return device.compile_kernels(module, target)

    @cached_property
    def coalescing(self) -> Any:
        from sparsetrain.backends.cuda.sparse import coalesce

        return coalesce

    def place(self, tensors: list[Any]) -> list[Any]:
        """Copy tensors to the device unless they are already there."""
        from sparsetrain.backends.cuda import pool

        return pool.place(tensors)

    def scratch(self, shape: tuple[int, ...], dtype: str) -> NDArray:
        from sparsetrain.backends.cuda import pool

        return pool.scratch(shape, dtype)

    def synchronize(self) -> None:
        tvm.cuda().sync()

    def totals(self, arrays: list[NDArray]) -> list[float]:
        from sparsetrain.backends.cuda.update.launch import totals

        return totals(arrays)

    def update_step(self, params: Any, gradients: Any, state: Any, loss: Any, kinds: Any) -> Any:
        from sparsetrain.backends.cuda.update.device_step import DeviceStep

        return DeviceStep(params, gradients, state)

    def training_step(self, trainer: Any) -> Any:
        from sparsetrain.backends.cuda.prefetch import DeviceTrainingStep

        return DeviceTrainingStep(trainer)

    def stage(self, trainer: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches; a separate thread sends them to the device and may sort their rows."""
        staged: Iterator[Any] = trainer.training_step.prefetch(batches)
        return staged


BACKEND = Cuda()

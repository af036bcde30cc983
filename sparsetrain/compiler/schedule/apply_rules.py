# SPDX-License-Identifier: Apache-2.0
"""Pass that schedules kernels by the rules, each distinct kernel once per process.

Programs with and without updates, for prediction, and of different optimizers share most of their
kernels. The result of a rule depends on the kernel and the target alone. Scheduling a product takes
50 to 100 ms on one core of an EPYC (Zen 3), a lookup 1 ms.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock

import tvm
from tvm import tirx
from tvm.s_tir.dlight import ApplyDefaultSchedule, ScheduleRule
from tvm.target import Target

from sparsetrain.runtime.library_cache import kernel_text

MOST_KERNELS = 500  # remembered, those used last


@tvm.transform.module_pass(opt_level=0, name="ApplyRules")
class ApplyRules:
    """Schedule every kernel that is not scheduled yet, as `ApplyDefaultSchedule` does.

    Parameters
    ----------
    rules : ScheduleRule
        Asked in this order.
    """

    def __init__(self, *rules: ScheduleRule) -> None:
        self._known = _known(rules)

    def transform_module(
        self, module: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """The module with its kernels scheduled."""
        target = Target.current(allow_none=False)
        result = module.clone()
        for var, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc) and not _is_scheduled(function):
                result[var] = self._known.scheduled(function, target)
        return result


def _is_scheduled(kernel: tirx.PrimFunc) -> bool:
    return bool(kernel.attrs and kernel.attrs.get("tirx.is_scheduled"))


class _Known:
    """Kernels, by their text, and what the rules made of them."""

    def __init__(self, rules: Sequence[ScheduleRule]) -> None:
        self._apply = ApplyDefaultSchedule(*rules)
        self._made: OrderedDict[tuple[str, str], tirx.PrimFunc] = OrderedDict()
        self._lock = Lock()

    def scheduled(self, kernel: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
        """`kernel` as the rules would have it, which may be as it is."""
        key = kernel_text(kernel), str(target)
        with self._lock:
            if key not in self._made:
                self._made[key] = self._apply(tvm.IRModule({"main": kernel}))["main"]
            self._made.move_to_end(key)
            while len(self._made) > MOST_KERNELS:
                self._made.popitem(last=False)
            return self._made[key]


@lru_cache(maxsize=8)
def _known(rules: Sequence[ScheduleRule]) -> _Known:
    return _Known(rules)

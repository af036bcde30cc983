# SPDX-License-Identifier: Apache-2.0
"""`KernelSpec`: a formula and the treatment of its gradient, the key of every compiled kernel.

Order, as in PyTorch: scale (global norm), clip by value, then decay. Coupled decay adds
``weight_decay * w`` to the gradient. Decoupled decay multiplies the weight by ``keep``, which is
``1 - lr * weight_decay``, computed on the host in float64, and leaves the gradient alone.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

from sparsetrain.optim.formula import Formula, maximum, minimum


class KernelSpec(NamedTuple):
    """Computation of a kernel, apart from shapes and dtypes.

    Parameters
    ----------
    formula : Formula
        The rule.
    numbers : tuple of str
        Names of the scalars of a step, in order; see `Rule.numbers`.
    decay : {None, "coupled", "decoupled"}
        Kind of weight decay.
    scaled, clipped : bool
        Whether the gradient is multiplied by ``h.scale``, and limited to ``h.clip``.
    """

    formula: Formula
    numbers: tuple[str, ...]
    decay: Literal["coupled", "decoupled"] | None = None
    scaled: bool = False
    clipped: bool = False

    @property
    def noop_on_zero_grad(self) -> str:
        """Case in which a gradient of 0 changes nothing; with decay there is none."""
        return "never" if self.decay else self.formula.noop_on_zero_grad

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of all scalar arguments of a kernel, in order."""
        return self.numbers + ("scale",) * self.scaled + ("clip",) * self.clipped

    def prepare(self, weight: Any, gradient: Any, h: SimpleNamespace) -> tuple[Any, Any]:
        """Weight and gradient after scale, clipping and decay."""
        if self.scaled:
            gradient = gradient * h.scale
        if self.clipped:
            gradient = minimum(maximum(gradient, -h.clip), h.clip)
        if self.decay == "coupled":
            gradient = gradient + h.weight_decay * weight
        if self.decay == "decoupled":
            weight = weight * h.keep
        return weight, gradient

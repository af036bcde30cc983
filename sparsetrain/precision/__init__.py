# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: what is rounded and the pass that does it, scaled losses, what CPUs need."""

from sparsetrain.exports import exported as _exported

from .half import to_half as to_half
from .loss_scale import LossScale as LossScale
from .loss_scale import Scaling as Scaling
from .loss_scale import scaling_for as scaling_for
from .names import Precision as Precision
from .names import lacks as lacks
from .names import policy_for as policy_for
from .policy import BFLOAT16 as BFLOAT16
from .policy import FLOAT16 as FLOAT16
from .policy import Policy as Policy

__all__ = _exported(globals())

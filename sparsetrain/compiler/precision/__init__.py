# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: policies, the pass that applies them, loss scaling, hardware requirements."""

from sparsetrain.compiler.precision.half import to_half as to_half
from sparsetrain.compiler.precision.loss_scale import LossScale as LossScale
from sparsetrain.compiler.precision.loss_scale import Scaling as Scaling
from sparsetrain.compiler.precision.loss_scale import scaling_for as scaling_for
from sparsetrain.compiler.precision.policy import BFLOAT16 as BFLOAT16
from sparsetrain.compiler.precision.policy import FLOAT16 as FLOAT16
from sparsetrain.compiler.precision.policy import Policy as Policy
from sparsetrain.compiler.precision.policy import Precision as Precision
from sparsetrain.compiler.precision.policy import lacks as lacks
from sparsetrain.compiler.precision.policy import policy_for as policy_for
from sparsetrain.system.exports import public_names as _public_names

__all__, __dir__ = _public_names(globals())

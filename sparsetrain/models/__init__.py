# SPDX-License-Identifier: Apache-2.0
"""Models: `DLRM`, its layers, and the base class of your own."""

from sparsetrain.models.batch_norm import BatchNorm as BatchNorm
from sparsetrain.models.click_model import ClickModel as ClickModel
from sparsetrain.models.dlrm import DLRM as DLRM
from sparsetrain.models.dropout import Dropout as Dropout
from sparsetrain.models.interaction import CrossInteraction as CrossInteraction
from sparsetrain.models.interaction import dot_interaction as dot_interaction
from sparsetrain.models.mlp import MLP as MLP
from sparsetrain.system.exports import public_names as _public_names

# Kind in a saved run -> class. Loading constructs no other.
MODELS = {DLRM.kind: DLRM}

__all__, __dir__ = _public_names(globals())

# SPDX-License-Identifier: Apache-2.0
"""Reverse-mode differentiation of Relax in which a row-sparse cotangent is a value.

Start with `cotangent` (how two cotangents are added), `vjp_rules` (which operators create
row-sparse ones) and `reverse` (the walk over the bindings).
"""

from sparsetrain.ad.check import check_grads as check_grads
from sparsetrain.ad.dense_rules import bce_with_logits as bce_with_logits
from sparsetrain.ad.dense_rules import cross_entropy_ as cross_entropy_
from sparsetrain.ad.dense_rules import linear_cross_entropy as linear_cross_entropy
from sparsetrain.ad.dense_rules import tiled_cross_entropy as tiled_cross_entropy
from sparsetrain.ad.dense_rules.batch_norm import batch_norm as batch_norm
from sparsetrain.ad.dense_rules.dropout import dropout as dropout
from sparsetrain.ad.densify import densify as densify
from sparsetrain.ad.gradient import GradientModule as GradientModule
from sparsetrain.ad.gradient import gradient as gradient
from sparsetrain.ad.vjp_rules import defvjp as defvjp
from sparsetrain.ad.vjp_rules import row_sparse_cotangent as row_sparse_cotangent
from sparsetrain.system.exports import public_names as _public_names

__all__, __dir__ = _public_names(globals())

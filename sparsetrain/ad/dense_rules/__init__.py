# SPDX-License-Identifier: Apache-2.0
"""Dense reverse rules that TVM 0.27 lacks, gets wrong, or has in a form models cannot use.

They are registered with `defvjp`, like a user's rules. `tests/ad` checks each against central
differences.
"""

from sparsetrain.ad.dense_rules import (
    attention,
    batch_norm,
    by_ids,
    dropout,
    einsum,
    elementwise,
    graph,
    losses,
    normalization,
    ragged,
    reductions,
    shapes,
)
from sparsetrain.ad.dense_rules.losses import bce_with_logits as bce_with_logits
from sparsetrain.ad.dense_rules.losses import cross_entropy_ as cross_entropy_
from sparsetrain.ad.dense_rules.losses import linear_cross_entropy as linear_cross_entropy
from sparsetrain.ad.dense_rules.losses import tiled_cross_entropy as tiled_cross_entropy
from sparsetrain.ad.vjp_rules import defvjp

_MODULES = (
    *(elementwise, by_ids, shapes, reductions),
    *(einsum, normalization, attention, losses, dropout, batch_norm),
    *(ragged, graph),
)
for _module in _MODULES:
    for _name, _rule in _module.RULES.items():
        defvjp(_name, _rule)

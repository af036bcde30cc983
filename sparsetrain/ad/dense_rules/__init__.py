# SPDX-License-Identifier: Apache-2.0
"""Dense reverse rules that models need and TVM 0.27 lacks, has wrong or in another form.

Registered with `defvjp` as a user's rules are; `tests/ad` checks each against central differences.
"""

from sparsetrain.ad.dense_rules import (
    attention,
    batch_norm,
    binary,
    by_ids,
    copies,
    dropout,
    einsum,
    elementwise,
    losses,
    normalization,
    ragged,
    reductions,
    shapes,
    softmax_loss,
)
from sparsetrain.ad.dense_rules.losses import bce_with_logits as bce_with_logits
from sparsetrain.ad.dense_rules.softmax_loss import linear_cross_entropy as linear_cross_entropy
from sparsetrain.ad.rules import defvjp

_MODULES = (
    *(elementwise, binary, by_ids, shapes, copies, reductions),
    *(einsum, normalization, attention, losses, dropout, batch_norm),
    *(ragged, softmax_loss),
)
for _module in _MODULES:
    for _name, _rule in _module.RULES.items():
        defvjp(_name, _rule)

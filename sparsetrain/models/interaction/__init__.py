# SPDX-License-Identifier: Apache-2.0
"""Feature interactions of DLRM: dot products of pairs, or cross layers.

The dot interaction is an operator (`operator`) with kernels for each kind of target; the cross
interaction consists of ordinary layers (`cross`).
"""

from sparsetrain.models.interaction.cross import CrossInteraction as CrossInteraction
from sparsetrain.models.interaction.operator import dot_interaction as dot_interaction
from sparsetrain.models.interaction.operator import interaction as interaction
from sparsetrain.models.interaction.result_layout import output_width as output_width

# SPDX-License-Identifier: Apache-2.0
"""How a sample's vectors meet, one of two (`choice`): as dot products, or in cross layers.

The dot interaction is an operator (`operator`) with kernels for each kind of target, the cross
interaction ordinary layers (`cross`).
"""

from sparsetrain.models.interaction.cross import CrossInteraction as CrossInteraction
from sparsetrain.models.interaction.operator import dot_interaction as dot_interaction
from sparsetrain.models.interaction.operator import interaction as interaction
from sparsetrain.models.interaction.places import output_width as output_width

# SPDX-License-Identifier: Apache-2.0
"""DLRM's dot interaction: an operator (`operator`) and its kernels for each kind of target."""

from sparsetrain.models.interaction.operator import dot_interaction as dot_interaction
from sparsetrain.models.interaction.operator import interaction as interaction
from sparsetrain.models.interaction.places import output_width as output_width

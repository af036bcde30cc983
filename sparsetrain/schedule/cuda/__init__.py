# SPDX-License-Identifier: Apache-2.0
"""How a Relax function becomes fast on a CUDA device."""

from sparsetrain.schedule.cuda.by_hand import WriteByHand as WriteByHand
from sparsetrain.schedule.cuda.rules import RULES as RULES

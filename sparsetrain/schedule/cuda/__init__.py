# SPDX-License-Identifier: Apache-2.0
"""How a Relax function becomes fast on a CUDA device."""

from sparsetrain.schedule.cuda.half_product import TensorCores as TensorCores
from sparsetrain.schedule.cuda.rules import RULES as RULES

# SPDX-License-Identifier: Apache-2.0
"""How a Relax function becomes fast on a CUDA device."""

from .by_hand import WriteByHand as WriteByHand
from .launched import RequireThreads as RequireThreads
from .names import NameForC as NameForC
from .rules import RULES as RULES
from .running import TakeRunningSums as TakeRunningSums

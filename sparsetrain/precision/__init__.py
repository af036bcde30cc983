# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: which operators round, the pass that lets them, and what a CPU needs for it."""

from .half import to_half as to_half
from .names import Precision as Precision
from .names import lacks as lacks
from .names import policy_for as policy_for
from .policy import BFLOAT16 as BFLOAT16
from .policy import FLOAT16 as FLOAT16
from .policy import Policy as Policy

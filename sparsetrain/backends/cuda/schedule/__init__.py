# SPDX-License-Identifier: Apache-2.0
"""Schedules for a CUDA device."""

from sparsetrain.backends.cuda.schedule.checks import NameForC as NameForC
from sparsetrain.backends.cuda.schedule.checks import RequireThreads as RequireThreads
from sparsetrain.backends.cuda.schedule.hand_written import WriteByHand as WriteByHand
from sparsetrain.backends.cuda.schedule.rules import RULES as RULES
from sparsetrain.backends.cuda.schedule.running_sum import TakeRunningSums as TakeRunningSums

# SPDX-License-Identifier: Apache-2.0
"""Schedules for a CUDA device."""

from sparsetrain.compiler.schedule.cuda.checks import NameForC as NameForC
from sparsetrain.compiler.schedule.cuda.checks import RequireThreads as RequireThreads
from sparsetrain.compiler.schedule.cuda.hand_written import WriteByHand as WriteByHand
from sparsetrain.compiler.schedule.cuda.rules import RULES as RULES
from sparsetrain.compiler.schedule.cuda.running_sum import TakeRunningSums as TakeRunningSums

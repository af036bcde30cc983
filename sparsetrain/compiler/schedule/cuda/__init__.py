# SPDX-License-Identifier: Apache-2.0
"""Schedules for a CUDA device."""

from sparsetrain.compiler.schedule.cuda.by_hand import WriteByHand as WriteByHand
from sparsetrain.compiler.schedule.cuda.check_launches import RequireThreads as RequireThreads
from sparsetrain.compiler.schedule.cuda.names import NameForC as NameForC
from sparsetrain.compiler.schedule.cuda.rules import RULES as RULES
from sparsetrain.compiler.schedule.cuda.running_sum import TakeRunningSums as TakeRunningSums

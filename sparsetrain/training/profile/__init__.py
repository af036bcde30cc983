# SPDX-License-Identifier: Apache-2.0
"""Profile of a training step: the time, operations and bytes of each kernel."""

from sparsetrain.training.profile.recorder import RECORDED as RECORDED
from sparsetrain.training.profile.recorder import WARM as WARM
from sparsetrain.training.profile.recorder import Recorder as Recorder
from sparsetrain.training.profile.recorder import StepProfiler as StepProfiler
from sparsetrain.training.profile.recorder import profile as profile
from sparsetrain.training.profile.result import Entry as Entry
from sparsetrain.training.profile.result import KernelTime as KernelTime
from sparsetrain.training.profile.result import StepProfile as StepProfile
from sparsetrain.training.profile.result import kernel_times as kernel_times

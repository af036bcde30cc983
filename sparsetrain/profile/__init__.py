# SPDX-License-Identifier: Apache-2.0
"""Where a training step spends its time: kernel by kernel, with what each computed and moved."""

from sparsetrain.profile.recorder import Entry as Entry
from sparsetrain.profile.recorder import Recorder as Recorder
from sparsetrain.profile.result import KernelTime as KernelTime
from sparsetrain.profile.result import StepProfile as StepProfile
from sparsetrain.profile.result import kernel_times as kernel_times
from sparsetrain.profile.watch import RECORDED as RECORDED
from sparsetrain.profile.watch import WARM as WARM
from sparsetrain.profile.watch import Watch as Watch

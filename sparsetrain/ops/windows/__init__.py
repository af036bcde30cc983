# SPDX-License-Identifier: Apache-2.0
"""Convolutions: what they are, forward and backward, without how they are made fast.

- `places`: where windows lie, of pools as well
- `loops`: the sums of a convolution and of its derivative, as plain loops
- `operators`: the same as operators, for the schedule of a target to lower in a way of its own
"""

from sparsetrain.ops.windows.loops import Convolution as Convolution
from sparsetrain.ops.windows.operators import to_large as to_large
from sparsetrain.ops.windows.operators import to_small as to_small
from sparsetrain.ops.windows.operators import to_weight as to_weight
from sparsetrain.ops.windows.places import Windows as Windows
from sparsetrain.ops.windows.places import inside as inside
from sparsetrain.ops.windows.places import spatial as spatial
from sparsetrain.ops.windows.places import taps as taps

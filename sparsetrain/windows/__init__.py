# SPDX-License-Identifier: Apache-2.0
"""Convolutions: what they are, forward and backward, without how they are made fast.

- `places`: where windows lie, of pools as well
- `loops`: the sums of a convolution and of its derivative, as plain loops
- `operators`: the same as operators, for the schedule of a target to lower in a way of its own
"""

from sparsetrain.windows.loops import Convolution as Convolution
from sparsetrain.windows.operators import to_large as to_large
from sparsetrain.windows.operators import to_small as to_small
from sparsetrain.windows.operators import to_weight as to_weight
from sparsetrain.windows.places import Windows as Windows
from sparsetrain.windows.places import inside as inside
from sparsetrain.windows.places import spatial as spatial
from sparsetrain.windows.places import taps as taps

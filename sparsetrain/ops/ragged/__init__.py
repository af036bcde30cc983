# SPDX-License-Identifier: Apache-2.0
"""Operators on ragged sequences: tokens of B rows in one array, without padding.

Tokens are (N, D), and row b ends before token ``ends[b]``, (B,) int64; the last end is N.
"""

from sparsetrain.ops.ragged.operators import ragged_attention as ragged_attention
from sparsetrain.ops.ragged.operators import ragged_distances as ragged_distances
from sparsetrain.ops.ragged.operators import ragged_expand as ragged_expand
from sparsetrain.ops.ragged.operators import ragged_last as ragged_last
from sparsetrain.ops.ragged.operators import ragged_max as ragged_max
from sparsetrain.ops.ragged.operators import ragged_nonempty as ragged_nonempty
from sparsetrain.ops.ragged.operators import ragged_positions as ragged_positions
from sparsetrain.ops.ragged.operators import ragged_silu_attention as ragged_silu_attention
from sparsetrain.ops.ragged.operators import ragged_sum as ragged_sum
from sparsetrain.ops.ragged.operators import ragged_take as ragged_take

# SPDX-License-Identifier: Apache-2.0
"""Convolutions on a CPU, forward and backward, as products of shifted rows.

- `grid`: where everything lies: tables
- `shape`, `rows`, `correlation`, `weight_sum`: the kernels, of which all convolutions have two
- `lowering`: operators become calls of them, with tables; what they do not take stays TVM's
"""

from sparsetrain.compiler.schedule.convolution.lowering import LEGALIZE as LEGALIZE

# SPDX-License-Identifier: Apache-2.0
"""Float32 products summed over rows, ``left.T @ right``, on a CPU: a hand-written kernel."""

from sparsetrain.compiler.schedule.row_product.match import TakeRowProducts as TakeRowProducts

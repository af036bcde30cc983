# SPDX-License-Identifier: Apache-2.0
"""Products summed over rows in float32 on a CPU, ``left.T @ right``: a kernel written by hand."""

from sparsetrain.compiler.schedule.row_product.take import TakeRowProducts as TakeRowProducts

# SPDX-License-Identifier: Apache-2.0
"""Hand-written CPU kernel for products summed over rows, ``left.T @ right``."""

from sparsetrain.compiler.schedule.row_product.match import TakeRowProducts as TakeRowProducts

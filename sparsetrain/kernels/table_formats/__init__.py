# SPDX-License-Identifier: Apache-2.0
"""Number formats of tables: half and int8 with stochastic rounding, and rows of bytes."""

from sparsetrain.kernels.table_formats.int8 import scales_of as scales_of
from sparsetrain.kernels.table_formats.noise import keys_of as keys_of
from sparsetrain.kernels.table_formats.stored import FOR_PREDICTION as FOR_PREDICTION
from sparsetrain.kernels.table_formats.stored import INT8 as INT8
from sparsetrain.kernels.table_formats.stored import TABLE_DTYPES as TABLE_DTYPES
from sparsetrain.kernels.table_formats.stored import TableDtype as TableDtype
from sparsetrain.kernels.table_formats.stored import check_table_dtype as check_table_dtype
from sparsetrain.kernels.table_formats.stored import check_target as check_target
from sparsetrain.kernels.table_formats.stored import check_trainable as check_trainable
from sparsetrain.kernels.table_formats.stored import computed_in as computed_in
from sparsetrain.kernels.table_formats.stored import floats_of as floats_of
from sparsetrain.kernels.table_formats.stored import has_scales as has_scales
from sparsetrain.kernels.table_formats.stored import is_half as is_half
from sparsetrain.kernels.table_formats.stored import is_rounded as is_rounded
from sparsetrain.kernels.table_formats.stored import numpy_dtype as numpy_dtype
from sparsetrain.kernels.table_formats.stored import quantize_rows_ as quantize_rows_
from sparsetrain.kernels.table_formats.stored import read_element as read_element
from sparsetrain.kernels.table_formats.stored import seen_as as seen_as
from sparsetrain.kernels.table_formats.stored import stored_rows as stored_rows
from sparsetrain.kernels.table_formats.stored import stored_width as stored_width
from sparsetrain.kernels.table_formats.stored import width_of as width_of

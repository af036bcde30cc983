# SPDX-License-Identifier: Apache-2.0
"""Arrays of a kernel by number."""

import numpy as np
import tvm
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.array_table import ArrayTable, number_table
from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target


def test_each_array_has_its_own_memory_and_extents():
    with kernel() as built:
        arrays = [buffer(f"values{n}", extents(2), "float32") for n in range(3)]
        table, numbers = ArrayTable(arrays), number_table([5, 6, 7])
        with T.parallel(0, 2) as part, T.serial(0, 3) as number:
            array = table[number]
            with T.serial(0, array.shape[0]) as i:
                T.buffer_store(array, T.Cast("float32", numbers[number]), [i, part])
    given = [np.zeros(shape, "f") for shape in ((4, 2), (1, 3), (0, 2))]
    tensors = [tvm.runtime.tensor(array) for array in given]
    compile_kernel(built.get(), host_target())(*tensors)
    for tensor, array, number in zip(tensors, given, (5, 6, 7), strict=True):
        array[:, :2] = number
        np.testing.assert_array_equal(tensor.numpy(), array)

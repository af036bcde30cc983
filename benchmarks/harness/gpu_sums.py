# SPDX-License-Identifier: Apache-2.0
"""Column sums on a CUDA device (gradients of biases), next to a copy's rate."""

from typing import Any

import numpy as np
from tvm import relax, tirx

from harness.gpu_timing import copying_rate, on_device, seconds_of
from sparsetrain.backends.cuda import device as gpu
from sparsetrain.compiler import schedule
from sparsetrain.runtime.compiling import build_relax
from sparsetrain.runtime.tensors import BFLOAT16

CALLS = 50
# Batch and columns of layers of the measured models.
MATRICES = ((65_536, 1024), (65_536, 128), (65_536, 1), (8192, 512), (8192, 64))
_DTYPES = {"float32": np.dtype("f4"), "bf16": BFLOAT16}


def measure_sums(precision: str) -> dict[str, Any]:
    """Microseconds of each sum, and its share of the bytes a copy moves meanwhile."""
    rate, found = copying_rate(), {}
    for rows, columns in MATRICES:
        numbers = np.random.default_rng(0).standard_normal((rows, columns), dtype=np.float32)
        matrix = numbers.astype(_DTYPES[precision])
        total, tensor = _sum_of_columns(columns, matrix.dtype), on_device(matrix)
        seconds = seconds_of(lambda _, total=total, tensor=tensor: total(tensor), CALLS)
        found[f"{rows}x{columns}"] = {
            "us": seconds * 1e6,
            "share_of_copy": matrix.nbytes / seconds / rate,
        }
    return {"precision": precision, "sums": found}


def _sum_of_columns(columns: int, dtype: np.dtype) -> Any:
    builder = relax.BlockBuilder()
    matrix = relax.Var("matrix", relax.TensorType((tirx.Var("B", "int64"), columns), dtype.name))
    with builder.function("sums", [matrix]):
        with builder.dataflow():
            wide = builder.emit(relax.op.astype(matrix, "float32"))
            out = builder.emit_output(builder.emit(relax.op.collapse_sum_to(wide, (columns,))))
        builder.emit_func_output(out)
    target = gpu.target()
    return build_relax(builder.get(), target, schedule.pipeline(target))["sums"]

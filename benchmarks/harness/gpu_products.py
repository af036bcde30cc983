# SPDX-License-Identifier: Apache-2.0
"""Matrix products of a layer on a CUDA device, next to PyTorch's."""

from typing import Any

import numpy as np
from tvm import relax

from harness.gpu_timing import on_device, seconds_of, torch_on_gpu
from sparsetrain.backends.cuda import device as gpu
from sparsetrain.compiler import schedule
from sparsetrain.compiler.precision import policy_for, to_half
from sparsetrain.runtime.compiling import build_relax

CALLS = 30
# Batch, outputs, inputs of layers of the measured models.
LAYERS = ((8192, 512, 367), (8192, 256, 512), (65_536, 1024, 1024))
# What is multiplied: x W', cotangent W, cotangent' x.
_FORMS = {
    "forward": lambda x, w, c: (x, _flip(w)),
    "back": lambda x, w, c: (c, w),
    "weights": lambda x, w, c: (_flip(c), x),
}


def measure_products(precision: str) -> dict[str, Any]:
    """TFLOP/s of each form of each layer, operands in float32, ours and PyTorch's."""
    found = {}
    for layer in LAYERS:
        rows, outputs, inputs = layer
        shapes = {"x": (rows, inputs), "w": (outputs, inputs), "c": (rows, outputs)}
        rng = np.random.default_rng(0)
        arrays = {n: rng.standard_normal(s, dtype=np.float32) for n, s in shapes.items()}
        flop = 2 * rows * outputs * inputs / 1e12
        arms = {"ours": _ours(arrays, precision), "torch": _torch(arrays, precision)}
        found["x".join(map(str, layer))] = {
            name: {form: flop / seconds_of(run, CALLS) for form, run in runs.items()}
            for name, runs in arms.items()
            if runs
        }
    return {"precision": precision, "TFLOP_per_s": found}


def _ours(arrays: dict[str, np.ndarray], precision: str) -> dict[str, Any]:
    tensors = [on_device(array) for array in arrays.values()]
    target = gpu.target()
    policy = policy_for(precision, target)
    builder = relax.BlockBuilder()
    for form, factors in _FORMS.items():
        arguments = [
            relax.Var(name, relax.TensorType(array.shape, "float32"))
            for name, array in arrays.items()
        ]
        with builder.function(form, arguments):
            with builder.dataflow():
                out = builder.emit_output(relax.op.matmul(*factors(*arguments)))
            builder.emit_func_output(out)
    module = builder.finalize()
    if policy is not None:
        for form in _FORMS:
            module = to_half(module, form, policy)
    machine = build_relax(module, target, schedule.pipeline(target))
    return {form: lambda _number, run=machine[form]: run(*tensors) for form in _FORMS}


def _torch(arrays: dict[str, np.ndarray], precision: str) -> dict[str, Any]:
    torch = torch_on_gpu()
    if torch is None:
        return {}
    dtype = {"float32": torch.float32, "bf16": torch.bfloat16}[precision]
    x, w, c = (torch.from_numpy(array).cuda().to(dtype) for array in arrays.values())
    return {
        "forward": lambda _number: x @ w.T,
        "back": lambda _number: c @ w,
        "weights": lambda _number: c.T @ x,
    }


def _flip(matrix: Any) -> Any:
    return relax.op.permute_dims(matrix)

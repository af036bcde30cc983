# SPDX-License-Identifier: Apache-2.0
"""Small Relax programs for the tests of the schedule, and how to run them."""

from itertools import takewhile

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.target import Target

from sparsetrain.backends.cpu.schedule import RULES, schedule
from sparsetrain.compiler.schedule import pipeline
from sparsetrain.compiler.schedule.pipeline import passes
from sparsetrain.runtime.compiling import build_relax
from sparsetrain.runtime.host import host_target
from sparsetrain.runtime.targets import device_of, resolve_target


def without_tiles(target):
    """The CPU without AMX, for tests of what others have."""
    features = [f for f in target.attrs.get("mattr", ()) if "amx" not in f]
    disabled = [f"-{f}" for f in ("amx-bf16", "amx-int8", "amx-tile")]
    attributes = {name: value for name, value in dict(target.attrs).items() if name != "mattr"}
    return Target({"kind": "llvm", **attributes, "mattr": [*features, *disabled]})


TARGETS = {
    "host": host_target(),
    "no tiles": without_tiles(host_target()),
    "avx2": Target({"kind": "llvm", "mcpu": "haswell"}),
    "plain": Target({"kind": "llvm"}),
}


def function(parameters, body, dtype="float32"):
    """A module whose `main` binds `body(*parameters)`; "b" in a shape is the symbolic batch."""
    batch = tirx.Var("b", "int64")
    builder = relax.BlockBuilder()
    variables = [
        relax.Var(name, relax.TensorType([batch if n == "b" else n for n in shape], dtype))
        for name, shape in parameters.items()
    ]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(body(*variables)))
        builder.emit_func_output(result)
    return builder.finalize()


def linear_forms(inputs, outputs, dtype="float32"):
    """A linear layer's three products: forward (NT), cotangent of x (NN), cotangent of w (TN)."""
    op = relax.op
    return function(
        {"x": ("b", inputs), "w": (outputs, inputs), "cotangent": ("b", outputs)},
        lambda x, w, ct: relax.Tuple(
            [
                op.matmul(x, op.permute_dims(w)),
                op.matmul(ct, w),
                op.matmul(op.permute_dims(ct), x),
            ]
        ),
        dtype,
    )


def mlp(inputs, hidden, outputs):
    """Forward and backward of two layers; ReLU's derivative is taken from its output."""
    op, zero = relax.op, relax.const(0.0, "float32")
    shapes = {"x": ("b", inputs), "w1": (hidden, inputs), "b1": (hidden,)}
    shapes |= {"w2": (outputs, hidden), "b2": (outputs,), "cotangent": ("b", outputs)}

    def body(x, w1, b1, w2, b2, cotangent):
        h = op.nn.relu(op.add(op.matmul(x, op.permute_dims(w1)), b1))
        y = op.add(op.matmul(h, op.permute_dims(w2)), b2)
        ct_h = op.matmul(cotangent, w2)
        ct_z = op.where(op.greater(h, zero), ct_h, op.zeros_like(ct_h))
        grads = [
            op.matmul(ct_z, w1),
            op.matmul(op.permute_dims(ct_z), x),
            op.sum(ct_z, axis=0),
            op.matmul(op.permute_dims(cotangent), h),
            op.sum(cotangent, axis=0),
        ]
        return relax.Tuple([y, *grads])

    return function(shapes, body)


def mlp_reference(x, w1, b1, w2, b2, cotangent):
    """`mlp` in NumPy, in float64."""
    x, w1, b1, w2, b2, ct = (a.astype("float64") for a in (x, w1, b1, w2, b2, cotangent))
    h = np.maximum(x @ w1.T + b1, 0)
    ct_z = np.where(h > 0, ct @ w2, 0)
    return [h @ w2.T + b2, ct_z @ w1, ct_z.T @ x, ct_z.sum(0), ct.T @ h, ct.sum(0)]


def compile_main(module, target="auto"):
    """`main` as a function of NumPy arrays that returns an array or a list of arrays.

    `target` is one of `TARGETS`, or "auto".
    """
    chosen = TARGETS.get(target) or resolve_target(target)
    main = build_relax(module, chosen, pipeline(chosen))["main"]

    def run(*arrays):
        result = main(*(tvm.runtime.tensor(a, device_of(chosen)) for a in arrays))
        return result.numpy() if hasattr(result, "numpy") else [r.numpy() for r in result]

    return run


def random_arguments(module, batch, seed=0):
    """Arrays for the parameters of `main`, with `batch` as the symbolic extent.

    They hold small whole numbers: products and sums of them are exact in float32, whatever the
    order, so results can be compared for equality, masks at exactly zero included.
    """
    random = np.random.default_rng(seed)
    parameters = module["main"].params
    return [
        random.integers(
            -3, 4, [int(n) if isinstance(n, tirx.IntImm) else batch for n in parameter.ty.shape]
        ).astype(str(parameter.ty.dtype.dtype))
        for parameter in parameters
    ]


def rules_by_kernel(module, target="host"):
    """For every kernel that fusion leaves, the name of the rule that schedules it, or None."""
    kernels = run_passes(module, until="ApplyRules", target=target)
    return {
        name.name_hint: _rule(kernel, TARGETS[target])
        for name, kernel in kernels.functions_items()
        if isinstance(kernel, tirx.PrimFunc)
    }


def run_passes(module, until, target="host"):
    """The module just before the pass named `until`."""
    early = takewhile(lambda one: one.info.name != until, passes(schedule()))
    with TARGETS[target]:
        return tvm.transform.Sequential(list(early))(module)


def _rule(kernel, target):
    accepting = (r for r in RULES if r.apply(kernel, target, False) is not None)
    return next((type(rule).__name__ for rule in accepting), None)


def assert_exact(results, expected):
    """Equal shapes and values."""
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


def assert_close(results, expected, tolerance=3e-6):
    """Equal shapes, and differences small beside the largest expected value."""
    for result, wanted in zip(results, expected, strict=True):
        assert result.shape == np.shape(wanted)
        scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
        assert np.abs(result - wanted).max(initial=0.0) <= tolerance * scale

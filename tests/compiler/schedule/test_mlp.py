# SPDX-License-Identifier: Apache-2.0
"""A whole multilayer perceptron, forward and backward: values, kernels, bits."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from sparsetrain.compiler.schedule import pipeline
from tests.compiler.schedule.relax_programs import (
    TARGETS,
    assert_exact,
    compile_main,
    function,
    mlp,
    mlp_reference,
    random_arguments,
    rules_by_kernel,
)
from tests.helpers import slow_except


@pytest.mark.parametrize(
    "inputs, hidden, outputs", slow_except([(40, 33, 1)], [(13, 64, 16), (40, 33, 1)])
)
def test_gradients_agree_with_float64_at_every_batch_size(inputs, hidden, outputs):
    module = mlp(inputs, hidden, outputs)
    run = compile_main(module)
    for batch in (1, 7, 128, 515):
        arguments = random_arguments(module, batch)
        assert_exact(run(*arguments), mlp_reference(*arguments))


def test_an_empty_batch_gives_empty_results_and_zero_gradients():
    module = mlp(13, 40, 1)
    output, ct_x, *gradients = compile_main(module)(*random_arguments(module, 0))
    assert output.shape == (0, 1)
    assert ct_x.shape == (0, 13)
    assert not any(gradient.any() for gradient in gradients)


def test_every_kernel_has_the_rule_meant_for_it():
    rules = rules_by_kernel(mlp(64, 128, 32), "avx2")
    gradients = {name for name, rule in rules.items() if rule is None}
    assert gradients == {"matmul_tn"}  # by hand, for both sizes, with sums for biases
    assert sorted(rules[name] for name in rules.keys() - gradients) == ["Matmul"] * 4


def test_bias_activation_and_mask_are_fused_into_products_and_no_transpose_is_left():
    names = set(rules_by_kernel(mlp(64, 128, 32)))
    assert {"fused_matmul_nt_add_relu", "fused_matmul_nt1_add1"} <= names
    assert any("where" in name and "matmul" in name for name in names)
    assert not any("transpose" in name for name in names)


def test_a_layer_of_one_output_is_not_padded_to_a_tile():
    rules = rules_by_kernel(mlp(64, 128, 1))
    thin = {name: rule for name, rule in rules.items() if rule not in ("Matmul", None)}
    assert set(thin.values()) == {"SingleReduction", "Elementwise"}
    assert len(thin) == 4


def test_the_stock_gradient_pass_compiles_through_the_same_pipeline():
    op = relax.op

    def loss(x, w, b):
        h = op.nn.relu(op.add(op.matmul(x, op.permute_dims(w)), b))
        return op.sum(op.multiply(h, h))

    module = function({"x": ("b", 20), "w": (8, 20), "b": (8,)}, loss)
    module = relax.transform.Gradient("main")(module)
    target = TARGETS["host"]
    executable = relax.build(module, target, relax_pipeline=pipeline(target))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    x, w, b = random_arguments(module, 30)
    value, gradients = machine["main_adjoint"](*(tvm.runtime.tensor(a) for a in (x, w, b)))
    x, w, b = (a.astype("float64") for a in (x, w, b))
    h = np.maximum(x @ w.T + b, 0)
    ct = 2 * h
    assert_exact([value.numpy()], [(h * h).sum()])
    assert_exact([g.numpy() for g in gradients], [ct @ w, ct.T @ x, ct.sum(0)])


@pytest.mark.slow
def test_results_have_the_same_bits_for_any_number_of_threads():
    folders = [str(Path(__file__).parents[1]), str(Path(__file__).parents[3]), *sys.path]
    environment = {"TVM_NUM_THREADS": "3", "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-c", _DIGESTS]
    digests = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=120
    ).stdout.split()
    assert len(digests) == 3
    assert len(set(digests)) == 1


def test_every_lowered_kernel_is_free_of_aliasing():
    lowered = pipeline(TARGETS["host"])(mlp(13, 64, 1))
    kernels = [f for _, f in lowered.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert all(kernel.attrs.get("tirx.noalias") for kernel in kernels)


# The pool's size is fixed at its first use, hence another process; how many of its threads work
# is not.
_DIGESTS = """
import hashlib
import tvm_ffi
from tests.compiler.schedule.relax_programs import compile_main, mlp, random_arguments

modules = [mlp(40, 70, 1), mlp(13, 64, 16)]
programs = [(compile_main(m), [a * 0.37 for a in random_arguments(m, 777)]) for m in modules]
for threads in (1, 2, 3):
    tvm_ffi.get_global_func("runtime.config_threadpool")(1, threads)
    digest = hashlib.sha256()
    for run, arguments in programs:
        for array in run(*arguments):
            digest.update(array.tobytes())
    print(digest.hexdigest())
"""

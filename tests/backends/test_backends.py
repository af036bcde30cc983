# SPDX-License-Identifier: Apache-2.0
"""The seam to what programs run on: all backends behind the same tests, and one from outside."""

import numpy as np
import pytest
import tvm

import sparsetrain as st
from sparsetrain import backend, optim
from sparsetrain.runtime.targets import device_of, resolve_target
from sparsetrain.runtime.tensors import to_device
from tests import small_dlrm
from tests.backends.plain import Plain
from tests.cuda.device import as_gpu

OPTIMIZERS = {
    "adagrad": lambda: optim.adagrad(0.1),
    "exact adam": lambda: optim.adam(0.1, mode="exact"),
    "clipped sgd": lambda: optim.sgd(0.1, clip_norm=0.5),
}


@pytest.fixture(params=["llvm", "plain", "cuda"])
def target(request, monkeypatch):
    """A target of each backend; the third comes from a folder of the tests."""
    if request.param == "cuda":
        with as_gpu(monkeypatch) as device:
            yield device
        return
    monkeypatch.setitem(backend.backends(), "plain", Plain())
    yield resolve_target(request.param)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["single", "weighted"])
def test_every_backend_trains_to_the_weights_of_the_cpu(target, name, kind):
    def trained(on):
        trainer = st.Trainer(small_dlrm.model(kind), OPTIMIZERS[name](), target=on)
        for seed in range(3):
            trainer.step(small_dlrm.batch(8, seed=seed, kind=kind))
        return trainer.state_dict()

    found, expected = trained(target), trained("cpu")
    assert found.keys() == expected.keys()
    for array, wanted in expected.items():
        np.testing.assert_allclose(found[array], wanted, rtol=1e-4, atol=1e-5, err_msg=array)


def test_a_row_sparse_tensor_is_coalesced_where_it_lies(target):
    ids, values = np.array([3, 1, 3], "i8"), np.arange(6, dtype="f4").reshape(3, 2)
    sparse = st.RowSparse.from_numpy(ids, values, num_rows=5)
    there = [to_device(leaf, device_of(target)) for leaf in sparse.leaves]
    unique = sparse.with_leaves(tuple(there)).coalesce()
    np.testing.assert_array_equal(st.runtime.as_numpy(unique.indices), [1, 3])
    np.testing.assert_array_equal(st.runtime.as_numpy(unique.values), [[2, 3], [4, 6]])


def test_a_program_says_on_what_it_runs(target):
    trainer = st.Trainer(small_dlrm.model(), optim.sgd(0.1), target=target)
    kind = "plain" if "plain" in target.keys else target.kind.name  # noqa: SIM118
    assert trainer.program.backend.kind == kind


def test_a_target_without_a_backend_is_refused():
    with pytest.raises(st.errors.ConfigError, match="use .* of kind 'llvm' or 'cuda'"):
        resolve_target(tvm.target.Target("c"))

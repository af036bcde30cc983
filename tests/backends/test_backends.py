# SPDX-License-Identifier: Apache-2.0
"""The seam to what programs run on: all backends behind the same tests, and one from outside."""

import subprocess
import sys
from itertools import product

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
from tests.helpers import slow_except

KINDS = ("single", "weighted")  # of ids
OPTIONS = {  # of a trainer
    "adagrad": lambda: {"optimizer": optim.adagrad(0.1)},
    "exact adam": lambda: {"optimizer": optim.adam(0.1, mode="exact")},
    "clipped sgd": lambda: {"optimizer": optim.sgd(0.1, clip_norm=0.5)},
    "dense momentum": lambda: {"optimizer": optim.momentum(0.1, mode="dense")},
    "parts of a batch": lambda: {"optimizer": optim.adagrad(0.1), "accumulate": 3},
}


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """A third backend, from a folder of the tests."""
    before = dict(backend.backends())
    backend.register(Plain())
    yield backend.backends()["plain"]
    backend.backends().clear()
    backend.backends().update(before)


@pytest.fixture(params=["llvm", "plain", "cuda"])
def target(request, monkeypatch):
    """A target of each backend."""
    if request.param == "cuda":
        with as_gpu(monkeypatch) as device:
            yield device
        return
    yield resolve_target(request.param)


_programs = {}  # of gradients, by target and kind of ids: those of a device take long to compile


def trainer_on(target, kind="single", **options) -> st.Trainer:
    trainer = st.Trainer(small_dlrm.model(kind), target=target, **options)
    key = trainer.target.kind.name, *trainer.target.keys, kind
    trainer.program = _programs.setdefault(key, trainer.program)
    return trainer


QUICK = [(name, "weighted") for name in OPTIONS] + [(name, "single") for name in [*OPTIONS][:3]]


@pytest.mark.parametrize(("name", "kind"), slow_except(QUICK, product(OPTIONS, KINDS)))
def test_every_backend_trains_to_the_weights_of_the_cpu(target, name, kind):
    def trained(on):
        trainer = trainer_on(on, kind, **OPTIONS[name]())
        batches = [small_dlrm.batch(8, seed=seed, kind=kind) for seed in range(3)]
        for batch in trainer.prefetch(batches):
            trainer.step(batch)
        return trainer.state_dict()

    found, expected = trained(target), trained("cpu")
    assert found.keys() == expected.keys()
    for array, wanted in expected.items():
        np.testing.assert_allclose(found[array], wanted, rtol=1e-4, atol=1e-5, err_msg=array)


def test_a_profile_names_the_kernels_of_a_step_and_takes_it_back(target):
    trainer = trainer_on(target, optimizer=optim.adagrad(0.1))
    before = trainer.state_dict()
    profile = trainer.profile(small_dlrm.batch(8), steps=2)
    names = {kernel.name for kernel in profile.kernels}
    assert names >= {"interaction", "lookup of rows", "update of touched rows"}
    assert ("wait for each other" in str(profile)) == (profile.device == "cuda")
    small_dlrm.assert_same_state(trainer.state_dict(), before)


def test_a_row_sparse_tensor_is_coalesced_where_it_lies(target):
    ids, values = np.array([3, 1, 3], "i8"), np.arange(6, dtype="f4").reshape(3, 2)
    sparse = st.RowSparse.from_numpy(ids, values, num_rows=5)
    there = [to_device(leaf, device_of(target)) for leaf in sparse.leaves]
    unique = sparse.with_leaves(tuple(there)).coalesce()
    np.testing.assert_array_equal(st.runtime.as_numpy(unique.indices), [1, 3])
    np.testing.assert_array_equal(st.runtime.as_numpy(unique.values), [[2, 3], [4, 6]])


def test_program_state_and_trainer_hold_the_backend_of_their_target(plain):
    trainer = st.Trainer(small_dlrm.model(), optim.sgd(0.1), target="plain")
    assert trainer.backend is trainer.program.backend is trainer.state.backend is plain
    assert st.Trainer(small_dlrm.model(), optim.sgd(0.1)).state.backend is backend.host()


def test_a_backend_is_asked_for_its_schedule_its_step_and_its_update(plain, monkeypatch):
    asked = []
    for name in ("schedule", "training_step", "update_step"):
        own = getattr(plain, name)
        monkeypatch.setattr(plain, name, lambda *a, n=name, f=own: asked.append(n) or f(*a))
    trainer = st.Trainer(small_dlrm.model(), optim.sgd(0.1, clip_norm=1), target="plain")
    trainer.step(small_dlrm.batch(8))
    assert asked[0] == "training_step" and {*asked} == {"training_step", "update_step", "schedule"}


def test_what_another_package_compiles_is_not_kept_for_the_next_process(plain):
    assert not plain.caches and backend.host().caches


def test_the_first_backend_of_a_memory_keeps_it_and_auto_takes_none_from_outside(plain):
    assert backend.backend_at(st.runtime.zeros((1,), "float32")) is backend.host()
    assert resolve_target("auto") is resolve_target("cpu")
    assert next(iter(backend.backends().values())) is backend.host()


def test_a_backend_that_lacks_a_method_is_refused_when_it_is_made():
    class Half(backend.Backend):
        kind = "half"

    with pytest.raises(TypeError, match="abstract"):
        Half()


def test_the_seam_imports_no_tvm():
    script = "import sys, sparsetrain.backend; sys.exit('tvm' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("options", [{}, {"parallel": st.parallel.local()}])
def test_a_plan_of_rows_is_refused_where_nothing_is_staged(options):
    with pytest.raises(st.errors.ConfigError, match="plan='host' needs CUDA"):
        st.Trainer(small_dlrm.model(), optim.sgd(0.1), target="cpu", plan="host", **options)


def test_a_target_without_a_backend_is_refused():
    with pytest.raises(st.errors.ConfigError, match="use .* of kind 'llvm' or 'cuda'"):
        resolve_target(tvm.target.Target("c"))


def test_an_operator_without_a_kernel_is_refused_by_name():
    message = "fancy_op has kernels only for the CPU: use target='cpu'"
    with pytest.raises(st.errors.ConfigError, match=message):
        backend.backends()["cuda"].kernel("fancy_op", None)

# SPDX-License-Identifier: Apache-2.0
"""A loop of one's own that was saved goes on to the bits of one that was not interrupted."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain import checkpoint, optim
from sparsetrain.backends.cpu import Cpu
from sparsetrain.errors import CheckpointError, ConfigError
from tests import small_dlrm
from tests.helpers import read_checkpoint, slow_except
from tests.optim.loop import CASES, END, TABLES, Loop, case
from tests.small_dlrm import assert_same_state

HALF = END // 2


def contents(loop: Loop) -> dict[str, np.ndarray]:
    """Parameters and slots, as they are."""
    slots = {f"{n}:{slot}": t for n, of_one in loop.state.items() for slot, t in of_one.items()}
    return {name: tensor.numpy() for name, tensor in {**loop.params, **slots}.items()}


# A formula and a dtype of each kind, rows that are behind, a number that follows the step.
QUICK = ("adam bfloat16", "rowwise_adagrad float16", "adam exact", "sgd, a schedule", "ftrl")


@pytest.mark.parametrize("which", slow_except(["a few"], ["a few", "all"]))
def test_another_process_goes_on_to_the_bits_of_an_uninterrupted_loop(which, tmp_path):
    names = CASES if which == "all" else QUICK
    for name in names:
        case(name).train(HALF).save(tmp_path / name)
    subprocess.run([sys.executable, "-m", "tests.optim.loop", "on", str(tmp_path)], check=True)
    for name in names:
        case(name).train(END).save(tmp_path / "whole")
        arrays, about = read_checkpoint(tmp_path / "ended" / name)
        expected, its = read_checkpoint(tmp_path / "whole")
        assert_same_state(arrays, expected)
        assert about == its and about["step"] == END


def test_what_is_loaded_replaces_weights_slots_steps_and_seed(tmp_path):
    first, second = case("adam float16").train(HALF), case("adam float16", seed=9).train(END)
    first.state.skipped = 2
    first.save(tmp_path / "run")
    assert second.load_(tmp_path / "run") == {"next": HALF}
    assert_same_state(contents(second), contents(first))
    assert [second.state.step, second.state.skipped, second.state.seed] == [HALF, 2, 0]


def test_a_loop_takes_back_its_own_save(tmp_path):
    loop = case("adam exact").train(HALF)
    loop.save(tmp_path / "run")
    expected = contents(loop.train(END))
    loop.load_(tmp_path / "run")
    assert_same_state(contents(loop.train(END)), expected)


@pytest.mark.parametrize(("before", "after"), [(0, 200), (200, 0)])
def test_a_loop_goes_on_where_other_tables_are_small(tmp_path, monkeypatch, before, after):
    def small_to(weights: int, seed: int = 0) -> Loop:
        monkeypatch.setattr(Cpu, "most_weights_dense", weights)
        return Loop(optim.adam(0.1, mode="exact"), tables=TABLES, seed=seed)

    loop = small_to(before).train(HALF)
    loop.save(tmp_path / "run")
    other = small_to(after, seed=3)
    other.load_(tmp_path / "run")
    for each in (loop, other):
        each.train(END).optimizer.flush_(each.params, each.state)
        del each.state["t"]["last"]  # -1 for untouched rows of large tables alone
    assert_same_state(contents(other), contents(loop))


def test_parameters_without_a_gradient_are_kept_too(tmp_path):
    loop = case("sgd float32")
    loop.params["frozen"] = st.runtime.as_tensor(np.arange(3), "int64")
    loop.save(tmp_path / "run")
    loop.params["frozen"] = st.runtime.zeros((3,), "int64")
    loop.load_(tmp_path / "run")
    np.testing.assert_array_equal(loop.params["frozen"].numpy(), [0, 1, 2])


def test_the_numbers_of_the_optimizer_that_loads_count(tmp_path):
    case("sgd float32").train(HALF).save(tmp_path / "run")
    loop = Loop(optim.sgd(0.0), seed=4)
    loop.load_(tmp_path / "run")
    before = contents(loop)
    assert_same_state(contents(loop.train(END)), before)


@pytest.mark.parametrize("kills", slow_except([1], [1, 10]))
def test_killed_at_any_moment_it_leaves_a_whole_save(tmp_path, kills):
    folder = tmp_path / "run"
    for delay in 0.02 * np.arange(1, kills + 1) / kills:
        command = [sys.executable, "-m", "tests.optim.loop", "save", str(folder)]
        with subprocess.Popen(command) as process:
            while process.poll() is None and not _step(folder) >= 3:
                time.sleep(0.005)
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        loop = case("adam bfloat16", seed=3)
        at = loop.load_(folder)["next"]
        assert at == loop.state.step >= 3
        assert_same_state(contents(loop), contents(case("adam bfloat16").train(at)))
        case("adam bfloat16").save(folder)  # over what the killed one left


def _step(folder: Path) -> int:
    with contextlib.suppress(CheckpointError):
        return read_checkpoint(folder)[1]["step"]
    return 0


# --- What is refused ----------------------------------------------------------------------------


def _cut(folder: Path) -> None:
    path = folder / "001.npy"
    path.write_bytes(path.read_bytes()[:-5])


def _flip(folder: Path) -> None:
    path = sorted(folder.glob("*.npy"))[-1]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "no folder": (lambda run: run.rename(run.with_name("away")), "there is no checkpoint at"),
    "no manifest": (lambda run: (run / "manifest.json").unlink(), "manifest.json is missing"),
    "a file cut off": (_cut, r"001.npy \(array 't:mean'\) has .* bytes where"),
    "a file lost": (lambda run: (run / "002.npy").unlink(), "002.npy is missing"),
    "a flipped bit of the last file": (_flip, "is damaged: its checksum"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_named_and_nothing_is_written(tmp_path, damage):
    spoil, message = DAMAGE[damage]
    case("adam bfloat16").train(HALF).save(tmp_path / "run")
    spoil(tmp_path / "run")
    assert_refused(case("adam bfloat16", seed=1), tmp_path / "run", message)


def assert_refused(loop: Loop, folder: Path, message: str) -> None:
    before, steps = contents(loop), loop.state.step
    with pytest.raises(CheckpointError, match=message) as raised:
        loop.load_(folder)
    assert str(folder) in str(raised.value) and "\n" not in str(raised.value)
    assert_same_state(contents(loop), before)
    assert loop.state.step == steps


ALIKE = "use the same parameters, optimizer and arguments of init"
OTHERS = {
    "another formula": (
        lambda: Loop(optim.adamw(0.1), tables=TABLES),
        "saved by the optimizer 'adam', not 'adamw': load it with that formula",
    ),
    "another mode": (
        lambda: Loop(optim.adam(0.1, mode="exact"), tables=TABLES),
        f"'t:last' is missing; the optimizer has mode 'exact'.*{ALIKE}",
    ),
    "another dtype": (
        lambda: Loop(optim.adam(0.1), "bfloat16", tables=TABLES),
        rf"'t' is \(60, 8\) float32, the model's is \(60, 8\) bfloat16; {ALIKE}",
    ),
    "tables of other rows": (
        lambda: Loop(optim.adam(0.1), tables={"t": {"C1": slice(0, 20), "C2": slice(20, 60)}}),
        rf"tables .* differ: saved .*'C1': \[0, 40\].*, current .*'C1': \[0, 20\].*{ALIKE}",
    ),
    "no word of tables": (
        lambda: Loop(optim.adam(0.1)),
        f"differ: saved .*, current {{}}: {ALIKE}",
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_was_made_otherwise_is_refused(tmp_path, other):
    make, message = OTHERS[other]
    Loop(optim.adam(0.1), tables=TABLES).train(HALF).save(tmp_path / "run")
    assert_refused(make(), tmp_path / "run", message)


def test_tables_of_another_size_are_refused(tmp_path):
    case("sgd float32").train(HALF).save(tmp_path / "run")
    loop = case("sgd float32", seed=1)
    loop.params["t"] = st.runtime.zeros((61, 8), "float32")
    loop.state = loop.optimizer.init(loop.params)
    assert_refused(loop, tmp_path / "run", rf"'t' is \(60, 8\) .* is \(61, 8\) float32; {ALIKE}")


MANIFESTS = {
    "no step": ({"step": None}, "has no valid 'step'"),
    "a step before the first": ({"step": -1}, "has no valid 'step'"),
    "a seed that is text": ({"seed": "x"}, "has no valid 'seed'"),
    "a list for extra": ({"extra": []}, "has no valid 'extra'"),
    "tables that are text": ({"tables": "x"}, "differ: saved 'x', current {}"),
    "a formula that is a list": ({"formula": [1]}, r"the optimizer \[1\], not 'sgd'"),
    "another kind": ({"kind": "cake"}, "holds 'cake', not a state from Optimizer.save"),
}


@pytest.mark.parametrize("change", MANIFESTS)
def test_a_manifest_is_not_believed(tmp_path, change):
    values, message = MANIFESTS[change]
    case("sgd float32").save(tmp_path / "run")
    arrays, about = read_checkpoint(tmp_path / "run")
    checkpoint.write(tmp_path / "run", arrays, {**about, **values})
    assert_refused(case("sgd float32", seed=1), tmp_path / "run", message)


def test_what_a_trainer_saved_and_what_a_loop_saved_say_who_reads_them(tmp_path):
    small_dlrm.trainer().save(tmp_path / "trainer")
    assert_refused(
        case("sgd float32"), tmp_path / "trainer", "read a saved Trainer with sparsetrain.load"
    )
    case("sgd float32").save(tmp_path / "loop")
    for read in (st.load, st.load_predictor):
        with pytest.raises(
            CheckpointError, match="loop: it was written by .*: read it with Optimizer.load_"
        ):
            read(tmp_path / "loop")


def test_a_folder_of_other_things_is_not_replaced(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="'notes.txt', which is not part of a checkpoint"):
        case("sgd float32").save(tmp_path)


def test_what_is_not_finite_is_neither_saved_nor_loaded(tmp_path, monkeypatch):
    loop = case("adam exact").train(1)
    name = next(iter(loop.params))
    loop.params[name] = st.runtime.as_tensor(np.full(loop.params[name].shape, np.inf, "f4"))
    with pytest.raises(st.errors.NumericalError, match=f"step 1: parameter {name!r} holds"):
        loop.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with monkeypatch.context() as patch:
        patch.setattr(optim.saving, "require_finite", lambda *_: None)
        loop.save(tmp_path / "run")
    other = case("adam exact").train(2)
    before = contents(other)
    with pytest.raises(CheckpointError, match=f"parameter {name!r} holds numbers that are not"):
        other.load_(tmp_path / "run")
    assert_same_state(contents(other), before)
    assert other.state.step == 2


def test_extra_that_json_would_lose_is_refused_before_anything_is_written(tmp_path):
    loop = case("sgd float32")
    with pytest.raises(CheckpointError, match="extra"):
        loop.optimizer.save(tmp_path / "run", loop.params, loop.state, {"x": np.ones(2)})
    assert not (tmp_path / "run").exists()


def test_mode_exact_of_other_tables_is_refused(tmp_path):
    def loop(lazy: str) -> Loop:
        groups = [optim.ParamGroup(lazy, mode="lazy")]
        return Loop(optim.adam(0.1, mode="exact", groups=groups), tables=TABLES)

    loop("C2").train(HALF).save(tmp_path / "run")
    message = rf"in exact mode differ: saved {{'t': \['C1'\]}}, current {{'t': \['C2'\]}}: {ALIKE}"
    assert_refused(loop("C1"), tmp_path / "run", message)
    everywhere = Loop(optim.adam(0.1, mode="exact"), tables=TABLES)
    assert_refused(everywhere, tmp_path / "run", r"current {'t': \['C1', 'C2'\]}")
    loop("C2").load_(tmp_path / "run")


@pytest.mark.parametrize("seed", [2**63, 2**128 + 1])
def test_any_seed_that_init_takes_is_loaded(tmp_path, seed):
    """Those of `secrets` and of NumPy's `SeedSequence` have 128 bits."""
    make, dtype = CASES["adam bfloat16"]
    first, whole, second = Loop(make(), dtype), Loop(make(), dtype), case("adam bfloat16", seed=3)
    for loop in (first, whole):
        loop.state = loop.optimizer.init(loop.params, seed=seed)
    first.train(HALF).save(tmp_path / "run")
    second.load_(tmp_path / "run")
    assert second.state.seed == seed
    assert_same_state(contents(second.train(END)), contents(whole.train(END)))


def test_a_parameter_with_the_name_of_a_slot_is_refused_rather_than_lost(tmp_path):
    optimizer = optim.adagrad(0.1)
    params = {name: st.runtime.zeros((4, 2), "float32") for name in ("t", "t:sum")}
    state = optimizer.init(params)
    with pytest.raises(ConfigError, match="both called 't:sum': rename the parameter"):
        optimizer.save(tmp_path / "run", params, state)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("when", ["check", "fill"])
def test_a_save_while_the_folder_is_read_is_what_is_loaded(tmp_path, monkeypatch, when):
    loop, other = case("adam float32").train(HALF), case("adam float32", seed=3)
    loop.save(tmp_path / "run")
    done = getattr(checkpoint.Saved, when)

    def meanwhile(saved, *args, **options):
        if loop.state.step < END:
            loop.train(END).save(tmp_path / "run")
        return done(saved, *args, **options)

    monkeypatch.setattr(checkpoint.Saved, when, meanwhile)
    assert other.load_(tmp_path / "run") == {"next": END}
    assert_same_state(contents(other), contents(loop))
    assert other.state.step == END


@pytest.mark.parametrize("extra", [[1], "abc", 5, [("a", 1)]])
def test_extra_is_a_mapping(tmp_path, extra):
    loop = case("sgd float32")
    with pytest.raises(ConfigError, match="extra is .*; give a mapping"):
        loop.optimizer.save(tmp_path / "run", loop.params, loop.state, extra)


@pytest.mark.parametrize("what", ["save", "load_"])
def test_parameters_that_are_missing_or_no_tensors_are_refused(tmp_path, what):
    loop = case("sgd float32")
    loop.save(tmp_path / "run")
    weight = loop.params.pop("w")
    with pytest.raises(ConfigError, match="parameter 'w' is missing; pass the tensors"):
        getattr(loop, what)(tmp_path / "run")
    loop.params["w"] = weight.numpy()
    with pytest.raises(ConfigError, match="parameter 'w' is a ndarray; pass the tensors"):
        getattr(loop, what)(tmp_path / "run")
    with pytest.raises(ConfigError, match="use the state from this optimizer's init"):
        getattr(loop.optimizer, what)(tmp_path / "run", loop.params, {})

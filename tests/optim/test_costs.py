# SPDX-License-Identifier: Apache-2.0
"""What a step costs by either path: measured, tried, remembered; and what a busy machine does."""

import json
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from sparsetrain import optim
from sparsetrain.optim.paths.costs import calibration, figures, remembered, waiting
from sparsetrain.optim.paths.costs.lines import Costs, distinct_rows
from sparsetrain.optim.paths.costs.trial import Kind, Trial, Verdict, contest
from sparsetrain.runtime import as_numpy, compiling
from sparsetrain.runtime.together import together
from tests.helpers import assert_same_bits


@pytest.fixture(autouse=True, scope="module")
def _brief_measurements():
    """Here they are as long as the package makes them."""


NO_OP = {"sgd": optim.sgd, "adagrad": optim.adagrad, "rowwise_adagrad": optim.rowwise_adagrad}
SGD = optim.sgd(0.1)._rule()
COMPILE = compiling.compile_kernel
KINDS = {
    "few rows": Kind(SGD, 4, "float32", 63),
    "adagrad": Kind(optim.adagrad(0.1)._rule(), 12, "float32", 2**20 - 1),
    "halves": Kind(optim.rowwise_adagrad(0.1)._rule(), 8, "bfloat16", 2**20 - 1),
}


@dataclass
class Machine:
    """A clock that work moves on; what else happens is up to `factor(seconds)`."""

    factor: object = lambda seconds: 1.0
    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds

    def work(self, microseconds: float, memory: float = 0.0):
        """Work of which some microseconds wait for memory."""

        def run() -> None:
            self.seconds += 1e-6 * (microseconds + memory * self.factor(self.seconds))

        return run


def bursts(seconds: float, share: float = 2 / 3) -> float:
    """Memory is five times slower in a share of every three milliseconds."""
    return 5.0 if seconds * 1e3 % 3 < 3 * share else 1.0


class Noise:
    """Now and then something takes the core away, for as long as a step takes or longer."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, seconds: float) -> float:
        return 1 + 4 * self.rng.exponential() * (self.rng.random() < 0.3)


DISTURBED = {
    "quiet": lambda: lambda seconds: 1.0,
    "bursts": lambda: lambda seconds: bursts(seconds, 1 / 3),
}
DISTURBED |= {f"noise {seed}": lambda seed=seed: Noise(seed) for seed in range(4)}


@pytest.mark.parametrize("name", DISTURBED)
@pytest.mark.parametrize("dense", [40.0, 50.0, 70.0])  # microseconds of memory; 60 are the same
def test_disturbances_do_not_turn_a_contest(name, dense):
    machine = Machine(DISTURBED[name]())
    verdict = contest(machine.work(60, 40), machine.work(40, dense), machine)
    assert np.sign(verdict.saved) == np.sign(60 - dense)
    assert machine.seconds < 1.0


@pytest.mark.parametrize(("share", "expected"), [(1 / 3, 1), (2 / 3, -1)])
def test_the_machine_as_it_is_most_of_the_time_decides_a_contest(share, expected):
    machine = Machine(lambda seconds: bursts(seconds, share))  # undisturbed: 100 and 90
    verdict = contest(machine.work(60, 40), machine.work(40, 50), machine)
    assert np.sign(verdict.saved) == expected
    assert (machine.seconds > 1) == (expected < 0)  # it knows when it is not sure


@pytest.mark.parametrize("period", [0.05, 0.2])  # seconds, of which the first third is quiet
def test_a_quiet_moment_does_not_decide_a_contest(period):
    # The first way is 5 % slower while the machine is quiet, 9 % faster when it is not.
    jitter = np.random.default_rng(0).uniform
    machine = Machine(lambda seconds: (1 if seconds % period < period / 3 else 3) * jitter(1, 1.5))
    verdict = contest(machine.work(160, 40), machine.work(128, 60), machine)
    assert verdict.high < 0


def test_a_clear_difference_needs_no_steady_machine():
    machine = Machine(Noise(0))
    verdict = contest(machine.work(60, 40), machine.work(20, 10), machine)
    assert verdict.low > 0 and machine.seconds < 0.05


def test_a_contest_of_equals_ends():
    machine = Machine()
    verdict = contest(machine.work(50), machine.work(50), machine)
    assert verdict == pytest.approx((0.0, 0.0, 0.0))
    assert machine.seconds < 0.01


def test_a_contest_never_takes_longer_than_it_may():
    machine = Machine(Noise(0))
    contest(machine.work(0, 4e4), machine.work(0, 4e4), machine)
    assert machine.seconds < 3  # three rounds of eight steps


def test_the_shortest_times_are_found_between_disturbances():
    machine = Machine(bursts)
    found = calibration.shortest([machine.work(10, 30), machine.work(20)], machine)
    assert found == pytest.approx([40.0, 20.0])


@pytest.mark.parametrize(
    ("name", "bits", "many"),
    [*((name, 12, False) for name in NO_OP), ("sgd", 1, False), ("sgd", 31, True)],
)
def test_costs_are_numbers_of_0_or_more(name, bits, many):
    rule = NO_OP[name](0.1, clip_value=1.0, clip_norm=1.0)._rule()
    found = calibration.measure(Kind(rule, 4, "float32", 2**bits - 1), many=many)
    assert all(np.isfinite(value) and value >= 0 for value in found)
    assert found.row > 0 and found.sparse + found.entry > 0


def on_lines(kind, rows, ids, distinct):
    """Microseconds of a trial whose costs are straight lines."""
    entries = 0.005 * ids
    return SimpleNamespace(
        sparse_=lambda: 20 + entries + 0.01 * distinct_rows(distinct, ids),
        dense_=lambda: 30 + 1.5 * entries + 0.005 * rows,
        split=lambda: 5 + 0.5 * entries,
    )


@pytest.mark.parametrize("late", range(9), ids="point {}".format)
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 31, 63, 127, 1023, 2**20 - 1])
def test_what_disturbs_one_point_is_not_multiplied(monkeypatch, rows, many, late):
    noise = 10.0

    def shortest(works):
        return [work() + noise * (place == late) for place, work in enumerate(works)]

    monkeypatch.setattr(calibration, "_trial", on_lines)
    monkeypatch.setattr(calibration, "shortest", shortest)
    found = calibration.measure(Kind(SGD, 16, "float32", rows), many=many)
    lookups = calibration.IDS[many][1] // 2
    expected = on_lines(None, rows, lookups, rows).sparse_()
    sparse = found.sparse + found.on_sparse_path(rows, lookups)
    assert abs(sparse - expected) <= 2 * noise


def test_rows_where_the_caches_end_have_a_price_of_their_own():
    numbers = dict.fromkeys(Costs._fields, 0.0) | {"entry": 1.0, "row": 0.5, "far_row": 2.0}
    found = Costs(**numbers | {"high": 10.0})
    assert [found.saved(rows, 100.0) for rows in (4, 10, 20)] == [98.0, 95.0, 75.0]


def test_both_paths_of_a_trial_touch_the_same_rows():
    found = []
    for way in ("sparse_", "dense_"):
        batches = [np.array([0, 3, 3, 6], np.int32), np.array([6, 1, 1, 1], np.int32)]
        trial = Trial(Kind(SGD, 4, "float32", 7), 4, 3, batches)
        next_ = iter(trial.gradients)
        gradients = [next(next_) for _ in batches]
        for gradient in gradients:
            as_numpy(gradient.values, writable=True)[...] = 1
        trial.gradients = iter(gradients)
        for _ in batches:
            getattr(trial, way)()
        found.append(as_numpy(trial.target.param))
    assert_same_bits(*found)
    assert found[0].any(axis=1).tolist() == [True, True, False, True, False, False, True]


def test_ids_of_a_trial_are_skewed_and_stay_in_their_table():
    rng = np.random.default_rng(0)
    ids = figures._ids(rng, [(0, 10, 500), (10, 1, 3), (11, 100, 2000)])
    assert ids.dtype == np.int32 and len(ids) == 2503
    counts = np.bincount(ids, minlength=111)
    assert counts[:10].sum() == 500 and counts[10] == 3 and counts.size == 111
    assert (counts[:10] > 0).all() and counts[11:].max() > 200


def test_counts_of_bags_are_rounded():
    assert [figures.rounded(n) for n in (0, 1, 7, 9, 15, 128, 2047, 2048)] == [
        *(0, 1, 7, 8, 14, 128, 1792, 2048)
    ]


# --- What is remembered ---------------------------------------------------------------------------


class Shop:
    """Figures that were measured, in a cache of its own."""

    def __init__(self, monkeypatch, folder) -> None:
        monkeypatch.setenv("SPARSETRAIN_CACHE", str(folder))
        monkeypatch.setattr(remembered, "_known", {})
        self.measured = 0
        self.folder = folder

    def ask(self) -> Verdict:
        """As a new process does."""
        remembered._known.clear()
        found = remembered.remembered(Verdict, ("key",), ("name",), self._measure)
        return None if found is None else found.figures

    def _measure(self) -> Verdict:
        self.measured += 1
        return Verdict(float(self.measured), float(self.measured))


@pytest.fixture
def shop(monkeypatch, tmp_path):
    """A cache of its own."""
    return Shop(monkeypatch, tmp_path)


def test_figures_are_measured_once(shop):
    assert shop.ask() == shop.ask() == Verdict(1.0, 1.0)
    remembered.remembered(Verdict, ("key",), ("name",), None)  # known to this process
    assert shop.measured == 1


@pytest.mark.parametrize("least", [-1.0, 0.0])
def test_a_damaged_file_is_replaced(shop, least):
    figures = shop.ask()
    kept = {path: path.read_text() for path in shop.folder.iterdir()}
    (file,) = kept
    whole = json.loads(kept[file])
    damages = ["", "{}", "[]", "NaN", "null", json.dumps(whole | {"tries": None})]
    damages.append(json.dumps(whole | {"tries": float("inf")}))
    damages += [json.dumps(whole | {"figures": figures._asdict() | {"low": float("nan")}})]
    for number, damage in enumerate(damages):
        file.write_text(damage)
        assert shop.ask().low == 2.0 + number


def test_a_file_with_too_small_a_number_is_damaged(shop):
    shop.ask()
    remembered._known.clear()
    again = remembered.remembered(Verdict, ("k",), ("name",), lambda: Verdict(9.0, 9.0), least=2.0)
    assert again.figures.low == 9.0


def test_figures_between_which_others_took_the_cores_are_measured_again(shop, monkeypatch):
    seen = iter([Verdict(n, n, waited) for n, waited in enumerate([1.9, 0.5, 0.9, 0.1])])
    monkeypatch.setattr(shop, "_measure", lambda: next(seen))
    assert [shop.ask() for _ in range(3)] == [None] * 3
    assert shop.ask() == shop.ask() == Verdict(3.0, 3.0, 0.1)


def test_figures_of_a_busy_machine_are_asked_for_once_by_a_process(shop, monkeypatch):
    monkeypatch.setattr(shop, "_measure", iter([Verdict(1.0, 1.0, 0.9)]).__next__)
    assert shop.ask() is None
    assert remembered.remembered(Verdict, ("key",), ("name",), None) is None


def test_figures_of_a_busy_machine_are_never_kept(shop, monkeypatch):
    monkeypatch.setattr(remembered, "WAITED", -1.0)
    assert [shop.ask() for _ in range(5)] == [None] * 5 and shop.measured == 5
    assert not list(shop.folder.iterdir())


def answers(shop, monkeypatch, *found: Verdict) -> list[float | None]:
    """What as many runs and three more get, where low numbers are against the default."""
    seen = iter(found)
    monkeypatch.setattr(shop, "_measure", lambda: next(seen))
    got = []
    for _ in range(len(found) + 3):
        remembered._known.clear()
        name = ("key",), ("name",)
        tried = remembered.remembered(
            Verdict, *name, shop._measure, doubtful=lambda tried: tried.low > 0
        )
        got.append(None if tried is None else tried.figures.low)
    assert next(seen, None) is None
    return got


AGAINST, FOR, BUSY = Verdict(5.0, 9.0), Verdict(-9.0, -5.0), Verdict(7.0, 9.0, 0.9)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([FOR], [-9] * 4),
        ([AGAINST] * 3, [5] * 6),
        ([AGAINST, FOR], [5] + [-9] * 4),
        ([AGAINST, AGAINST, FOR], [5, 5] + [-9] * 4),
        ([BUSY, AGAINST, BUSY, AGAINST, BUSY, FOR], [None, 5, 5, 5, 5] + [-9] * 4),
    ],
    ids=["for", "against", "then for", "at last for", "busy meanwhile"],
)
def test_figures_against_the_default_are_found_by_three_runs_or_dropped(
    shop, monkeypatch, found, expected
):
    assert answers(shop, monkeypatch, *found) == expected


def test_a_verdict_for_the_dense_path_is_doubtful(shop, monkeypatch):
    tried = iter([Verdict(5.0, 9.0), Verdict(6.0, 9.0), Verdict(-9.0, -5.0)])
    monkeypatch.setattr(figures, "_try", lambda *_: next(tried))
    asked = SGD, 4, "float32", 900, [3, 50], 20, 40
    found = []
    for _ in range(4):
        remembered._known.clear()
        verdict = figures.verdict_of(*asked)
        found.append((verdict.figures.low, verdict.tries))
    assert found == [(5.0, 1), (5.0, 2), (-9.0, 1), (-9.0, 1)]


def test_without_a_folder_figures_are_measured_in_each_process(shop, monkeypatch):
    monkeypatch.setenv("SPARSETRAIN_CACHE", "")
    monkeypatch.setattr(remembered.libraries, "folder", lambda: None)
    assert [shop.ask().low, shop.ask().low] == [1.0, 2.0]
    monkeypatch.setattr(remembered, "WAITED", -1.0)
    assert shop.ask() is None


@pytest.mark.parametrize("name", NO_OP)
def test_real_tables_are_tried(shop, monkeypatch, name):
    monkeypatch.setattr(remembered, "WAITED", np.inf)
    verdict, tries = figures.verdict_of(
        NO_OP[name](0.1)._rule(), 4, "float32", 900, [3, 50], 20, 40
    )
    assert tries == 1
    assert np.isfinite(verdict).all() and verdict.low <= verdict.high
    assert figures.costs_of(SGD, 4, "float32", 900, 100).high > 0


# --- Whether others had the cores -----------------------------------------------------------------


def test_linux_says_how_long_threads_waited():
    first, then = waiting._waited(), waiting._waited()
    assert all(0 <= seconds <= then.get(thread, seconds) for thread, seconds in first.items())


def test_threads_wait_where_there_are_more_of_them_than_cores():
    if not waiting._waited():
        pytest.skip("the system does not tell")
    code = (
        "import os, subprocess, sys, time\n"
        "from sparsetrain.optim.paths.costs.waiting import share_waited\n"
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "def spin():\n"
        "    end = time.process_time() + 0.2\n"
        "    while time.process_time() < end: pass\n"
        "other = subprocess.Popen([sys.executable, '-c', 'while 1: pass'])\n"
        "try: print(share_waited(spin)[1])\n"
        "finally: other.kill()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) > remembered.WAITED


def test_what_threads_waited_is_a_share_of_the_time(monkeypatch):
    seconds, waited = iter([1.0, 5.0]), iter([{"1": 2.0}, {"1": 3.5, "2": 0.5}])
    monkeypatch.setattr(waiting, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    monkeypatch.setattr(waiting, "_waited", lambda: next(waited))
    assert waiting.share_waited(lambda: "found") == ("found", 0.5)


def test_threads_that_end_do_not_make_the_machine_look_quiet(monkeypatch):
    """A reader of data ends in the first second, and of all threads it waits most."""
    seconds, waited = iter([1.0, 5.0]), iter([{"1": 2.0, "2": 60.0, "3": 9.0}, {"1": 4.0, "3": 1}])
    monkeypatch.setattr(waiting, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    monkeypatch.setattr(waiting, "_waited", lambda: next(waited))
    assert waiting.share_waited(lambda: "found") == ("found", 0.5)


@pytest.mark.parametrize(
    ("threads", "waited", "ran", "share"),
    [
        (3, 4.0, 8.0, 0.0),  # all cores were theirs
        (3, 6.0, 6.0, 0.5),  # another process had half a core in the mean
        (3, 1.0, 4.0, 0.25),  # they wanted no more than the cores, so others took them
        (2, 2.0, 6.0, 0.5),
        (2, 4.0, 8.0, 1.0),  # not kernels but readers of data beside them, which disturb as well
        (9, 28.0, 8.0, 0.0),
    ],
)
def test_threads_beyond_the_cores_must_wait(monkeypatch, threads, waited, ran, share):
    """On two cores for four seconds."""
    seconds = iter([1.0, 5.0])
    found = iter([{"1": 2.0, "2": 3.0}, {"1": 2.0 + waited / 2, "2": 3.0 + waited / 2}])
    monkeypatch.setattr(waiting, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    monkeypatch.setattr(waiting, "_waited", lambda: next(found))
    monkeypatch.setattr(waiting, "process_time", iter([7.0, 7.0 + ran]).__next__)
    monkeypatch.setattr(waiting, "available_cores", lambda: 2)
    monkeypatch.setattr(waiting.runtime, "num_threads", lambda: threads)
    assert waiting.share_waited(lambda: "found") == ("found", share)


@pytest.mark.parametrize("lines", [False, True])
def test_what_threads_waited_is_found_by_trials_and_lines(monkeypatch, lines):
    log = []

    def share_waited(measure):
        log.append("begun")
        return measure(), 0.7

    def step():
        log.append("step")

    def trial(*_):
        return SimpleNamespace(sparse_=step, dense_=step, split=step)

    where = calibration if lines else figures
    monkeypatch.setattr(where, "share_waited", share_waited)
    kind = Kind(SGD, 4, "float32", 7)
    if lines:
        monkeypatch.setattr(calibration, "_trial", trial)
        found = calibration.measure(kind, many=False)
    else:
        monkeypatch.setattr(figures, "Trial", trial)
        found = figures._try(kind, (3,), 5, 0, 0)
    assert found.waited == 0.7
    assert log.index("begun") == (9 if lines else 2)  # all kernels were compiled before


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_all_that_is_measured_was_compiled_at_once(kind, many, monkeypatch):
    late = []

    def first(works):
        together(works)
        monkeypatch.setattr(compiling, "compile_kernel", lambda *kernel: late.append(kernel))

    monkeypatch.setattr(calibration, "together", first)
    monkeypatch.setattr(calibration, "MOST_ROUNDS", 1)
    calibration.measure(kind, many=many)
    assert not late and compiling.compile_kernel is not COMPILE

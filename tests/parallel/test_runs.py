# SPDX-License-Identifier: Apache-2.0
"""Runs of several ranks: fitted, scored, resumed by any number of them and by one process."""

import itertools
import time

import numpy as np
import pandas as pd
import pytest

import sparsetrain as st
from sparsetrain.parallel.group import Group
from tests.helpers import read_checkpoint, slow_except
from tests.parallel.threads import all_of, run_ranks

ROWS, BATCH = 300, 64


def make_clicks():
    rng = np.random.default_rng(0)
    item = rng.zipf(1.3, ROWS) % 50
    labels = (rng.random(ROWS) < 0.2 + 0.5 * (item < 3)).astype(int)
    return pd.DataFrame(
        {
            "label": labels,
            "I1": rng.integers(0, 9, ROWS),
            "C1": item,
            "C2": rng.integers(0, 5, ROWS),
        }
    )


@pytest.fixture(scope="module")
def clicks():
    return make_clicks()


@pytest.fixture(scope="module")
def encoder(clicks):
    return st.data.Encoder.fit(clicks)


def fitted(clicks, encoder, folder, parallel, stop_after=None, load=False, **options):
    """The history, scores and predictions of a rank."""
    asked = iter(range(99))
    if load:
        trainer = st.load(folder, parallel=parallel)
    else:
        model = st.models.DLRM(rows=encoder.rows, num_dense=1, dim=4, bottom=(8,), top=(8,))
        optimizer = st.optim.adam(0.01, mode="exact")
        trainer = st.Trainer(model, optimizer, encoder=encoder, parallel=parallel)
    history = trainer.fit(
        clicks,
        validation=clicks,
        epochs=2,
        batch_size=BATCH,
        run=st.Run(folder, every=3, log_every=1),
        stop=None if stop_after is None else lambda: next(asked) + 1 >= stop_after,
        resume=load,
        progress=None,
        **options,
    )
    return history["epochs"], trainer.evaluate(clicks), trainer.predict(clicks, batch_size=37)


def on(size, *arguments, parts=4, **options):
    def work(comm):
        return fitted(*arguments, Group(comm, "auto", parts), **options)

    results = all_of(run_ranks(size, work))
    for epochs, scores, predictions in results[1:]:
        assert [e.get("valid") for e in epochs] == [e.get("valid") for e in results[0][0]]
        assert scores == results[0][1] and (predictions == results[0][2]).all()
    return results[0]


def arrays_of(folder):
    return {
        name: array.tobytes() for name, array in read_checkpoint(st.Run(folder).latest)[0].items()
    }


@pytest.fixture(scope="module")
def whole(clicks, encoder, tmp_path_factory):
    """An uninterrupted run of one process in four parts."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, fitted(clicks, encoder, folder, st.parallel.local(parts=4))


@pytest.mark.parametrize("first, then", slow_except([(2, 4)], [(2, 4), (4, 2), (2, None)]))
def test_other_ranks_go_on_with_a_run_to_the_same_bits(
    clicks, encoder, whole, tmp_path, first, then
):
    folder = tmp_path / "run"
    on(first, clicks, encoder, folder, stop_after=6)
    assert st.Run(folder).manifest()["steps"] == 6
    if then is None:
        found = fitted(clicks, encoder, folder, st.parallel.local(), load=True)
    else:
        found = on(then, clicks, encoder, folder, parts=None, load=True)
    assert arrays_of(folder) == arrays_of(whole[0])
    assert found[1] == whole[1][1]
    assert (found[2] == whole[1][2]).all()
    alone = st.load(folder)  # as anything that was saved
    assert alone.evaluate(clicks) == found[1]
    lines = [line["step"] for line in st.Run(folder).log() if line["split"] == "train"]
    assert lines == list(range(1, 11))


def test_one_process_that_knows_of_no_parts_does_not_go_on(clicks, encoder, tmp_path):
    on(2, clicks, encoder, tmp_path / "run", stop_after=2)
    with pytest.raises(st.errors.CheckpointError, match="parts was 4 in this run and is None now"):
        fitted(clicks, encoder, tmp_path / "run", None, load=True)
    with pytest.raises(
        st.errors.CheckpointError, match="3 ranks cannot share: use 1 or 2 or 4 ranks"
    ):
        on(3, clicks, encoder, tmp_path / "run", parts=None, load=True)


@pytest.fixture
def said_beside_a_full_disk(clicks, encoder, tmp_path, monkeypatch):
    """Return a function of when a rank has no room for a piece: it gives the other's error."""
    from sparsetrain.parallel import saving

    def said(is_full):
        def write_or_fail(draft, piece, rows):
            if is_full(draft, piece):
                raise OSError(28, "No space left on device")
            return write(draft, piece, rows)

        def work(comm):
            return fitted(clicks, encoder, tmp_path / "run", Group(comm, "row", 2))

        write = saving._write
        monkeypatch.setattr(saving, "_write", write_or_fail)
        other, full = sorted(run_ranks(2, work), key=lambda error: type(error).__name__)
        assert isinstance(full, st.errors.ResourceError)
        assert isinstance(other, st.errors.ParallelError)
        return str(other)

    return said


def test_a_checkpoint_keeps_what_was_trained_when_a_rank_fails_in_the_next(
    said_beside_a_full_disk, tmp_path
):
    pieces = itertools.count(1)
    said = said_beside_a_full_disk(lambda draft, piece: next(pieces) == 41)
    assert "of 2 (host" in said and "ResourceError" in said
    assert st.load(tmp_path / "run").steps == 3
    assert not list((tmp_path / "run").glob(".*new*"))


def test_a_rank_that_writes_late_names_the_rank_that_failed(said_beside_a_full_disk):
    def first_is_full(draft, piece):
        while piece.writer != 0 and draft.is_dir():
            time.sleep(0.01)
        return piece.writer == 0

    assert "ResourceError" in said_beside_a_full_disk(first_is_full)


def test_a_folder_that_a_rank_does_not_see_is_refused_before_the_first_step(
    clicks, encoder, tmp_path, monkeypatch
):
    seen = type(tmp_path).is_dir
    monkeypatch.setattr(
        type(tmp_path), "is_dir", lambda path: path != tmp_path / "run" and seen(path)
    )

    def work(comm):
        return fitted(clicks, encoder, tmp_path / "run", Group(comm, "row", 2))

    for error in run_ranks(2, work):
        assert isinstance(error, st.errors.CheckpointError)
        assert f"rank 0 of 2 (host0) cannot access {tmp_path / 'run'}" in str(error)


def test_scores_do_not_depend_on_ranks_and_a_profile_tells_what_was_sent(clicks, encoder):
    many = clicks.sample(10_001, replace=True, random_state=0)

    def work(comm):
        model = st.models.DLRM(rows=encoder.rows, num_dense=1, dim=4, bottom=(8,), top=(8,))
        trainer = st.Trainer(
            model, st.optim.adagrad(0.1), encoder=encoder, parallel=Group(comm, "row", 4)
        )
        history = trainer.fit(clicks, batch_size=BATCH, progress=None, profile=True)
        return str(history["profile"]), trainer.evaluate(many), trainer.evaluate(many[:1])

    alone, *others = (all_of(run_ranks(size, work)) for size in (1, 2, 4))
    assert alone[0][1]["rows"] == 10_001 and alone[0][2]["rows"] == 1
    for ranks in others:
        assert all(found[1:] == alone[0][1:] for found in ranks)
        assert "gradients of rows" in ranks[0][0] and "KB sent" in ranks[0][0]

# SPDX-License-Identifier: Apache-2.0
"""SIGINT and SIGTERM in every phase of a command: its exit code, and what it does next.

A phase is a function; it sends the signals to this process and goes on. So they arrive at the same
place each time.
"""

import os
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain import checkpoint
from sparsetrain.checkpoint import folders
from sparsetrain.cli import main, trainers
from sparsetrain.cli.convert import PassProgress
from sparsetrain.training.run import folder, log
from tests import small_dlrm
from tests.faults.failing_calls import tree
from tests.helpers import slow_except

SIGNALS = {
    130: [signal.SIGINT],
    143: [signal.SIGTERM],
    "at once": [signal.SIGTERM, signal.SIGINT],
}
# Phase -> where it is, and which call of it: later ones have a checkpoint behind them.
TRAIN = {
    "encode": (st.data.Encoder, "fit", 1),
    "read held-out rows": (trainers, "_read_held_out", 1),
    "compile": (st.Trainer, "compile", 1),
    "begin the log": (log.Log, "__init__", 1),
    "train": (st.Trainer, "step", 5),
    "validate": (st.Trainer, "_score", 1),
    "save": (checkpoint, "write", 2),
    "put the save in its place": (folders, "publish", 2),
    "let LATEST name it": (folder, "write_pointer", 2),
    "prune": (folder.Run, "_prune", 2),
    "score": (st.Trainer, "evaluate", 1),
}
CONVERT = {
    "read": "reading",
    "count values": "counting values",
    "write": "writing",
}


def send_in(monkeypatch, owner: object, name: str, number: int, signals: list[int]) -> None:
    """Let call `number` of a function begin with signals to this process."""
    real, calls = getattr(owner, name), iter(range(1, 1_000_000))

    def sending(*arguments, **options):
        if next(calls) == number:
            for signum in signals:
                os.kill(os.getpid(), signum)
        return real(*arguments, **options)

    bound = isinstance(owner, type) and hasattr(real, "__self__")
    monkeypatch.setattr(owner, name, staticmethod(sending) if bound else sending)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("data")
    for seed, (name, rows) in enumerate({"train": 150, "valid": 60}.items()):
        pq.write_table(pa.table(small_dlrm.raw_rows(rows, seed=seed)), place / f"{name}.parquet")
    return place


def train(data: Path, out: Path) -> int:
    files = [str(data / "train.parquet"), "--valid", str(data / "valid.parquet")]
    files += ["--test", str(data / "valid.parquet")]
    model = ["--set", "model.dim=4", "--set", "model.bottom=8", "--set", "model.top=8"]
    often = ["--checkpoint-every", "3", "--batch-size", "32", "--min-count", "1"]
    return main(["train", *files, *model, *often, "--out", str(out), "--resume", "auto"])


@pytest.fixture(scope="module")
def uncut(data, tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("uncut") / "run"
    assert train(data, out) == 0
    return st.load(out).state_dict()


OFTEN = [*((phase, "at once") for phase in TRAIN), ("encode", 143), ("train", 130)]
QUICK = [("encode", 143), ("compile", "at once"), ("train", 130), ("train", "at once")]
QUICK += [("save", "at once"), ("put the save in its place", "at once"), ("score", "at once")]


@pytest.mark.parametrize(("phase", "code"), slow_except(QUICK, OFTEN))
def test_train_ends_with_the_signals_code_and_goes_on_to_the_same_bits(
    data, uncut, tmp_path, capsys, phase, code
):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        send_in(patch, *TRAIN[phase], SIGNALS[code])
        ended = train(data, out)
    said = capsys.readouterr().err
    assert ended in ((130, 143) if code == "at once" else (code,)), said
    assert (
        said.splitlines()[-1]
        == f"sparsetrain: stopped by {'SIGINT' if ended == 130 else 'SIGTERM'}"
    )
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert not out.exists() or st.Run(out).latest is None or st.load(out).steps > 0
    assert train(data, out) == 0
    small_dlrm.assert_same_state(st.load(out).state_dict(), uncut)
    assert not [path.name for path in out.iterdir() if ".new-" in path.name]


def convert(data: Path, out: Path) -> int:
    return main(["convert", str(data / "train.parquet"), "--out", str(out), "--min-count", "1"])


@pytest.fixture(scope="module")
def converted(data, tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("converted") / "out"
    assert convert(data, out) == 0
    return tree(out)


@pytest.mark.parametrize(
    ("phase", "code"), [*((phase, "at once") for phase in CONVERT), ("read", 130), ("write", 143)]
)
def test_convert_ends_with_the_signals_code_and_goes_on_to_the_same_files(
    data, converted, tmp_path, capsys, phase, code
):
    out, show = tmp_path / "out", PassProgress.__call__
    pending = list(SIGNALS[code])

    def sending(self, name, rows, share):
        while CONVERT[phase] == name and pending:
            os.kill(os.getpid(), pending.pop(0))
        show(self, name, rows, share)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PassProgress, "__call__", sending)
        ended = convert(data, out)
    said = capsys.readouterr().err
    assert ended in ((130, 143) if code == "at once" else (code,)), said
    assert said.splitlines()[-1].startswith("sparsetrain: stopped by SIG")
    assert not (out / "dataset.json").exists()
    assert convert(data, out) == 0
    assert tree(out) == converted

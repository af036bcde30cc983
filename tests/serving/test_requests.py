# SPDX-License-Identifier: Apache-2.0
"""Bodies in JSON and Arrow: what is read, and what is refused before memory is taken for it."""

import json
import random
import re
import struct
import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from sparsetrain.errors import DataError
from sparsetrain.serving import json_rows, requests
from sparsetrain.serving.json_rows import read_rows
from sparsetrain.serving.limits import Most, TooLarge
from sparsetrain.serving.requests import from_arrow, from_json, to_json
from tests.serving.attacks import (
    arrow_bombs,
    json_bombs,
    negative_view,
    nulls,
    shared_text,
    stream,
)

MOST = Most(rows=100_000, values=2_000_000, bytes=16 << 20)
NAMES = ("user", "site", "age")
STATED = {**nulls(), **{name: arrow_bombs()[name] for name in ("zstd", "lz4", "zstd beside")}}
SHARED = {name: arrow_bombs()[name] for name in ("dictionary", "views")}
OF_SHARED = pa.ListArray.from_arrays(pa.array([0, 1000], pa.int32()), shared_text(1000))
INDICES = pa.array([0] * 1000, pa.int32())
SHARED |= {
    "lists of views": stream({"user": OF_SHARED}),
    "dictionary of views": stream(
        {"site": pa.DictionaryArray.from_arrays(INDICES, shared_text(1))}
    ),
    "lists of a dictionary": stream(
        {
            "site": pa.ListArray.from_arrays(
                pa.array([0, 1000], pa.int32()),
                pa.DictionaryArray.from_arrays(INDICES, pa.array(["x" * 2**20])),
            )
        }
    ),
}


@pytest.mark.parametrize("case", STATED)
def test_an_arrow_stream_that_says_to_be_large_is_not_read(case, monkeypatch):
    monkeypatch.setattr(pa.ipc, "open_stream", Mock(side_effect=AssertionError))
    with pytest.raises(TooLarge, match="split it"):
        from_arrow(STATED[case], NAMES, MOST)


@pytest.mark.parametrize("case", SHARED)
def test_text_that_rows_share_counts_for_each(case, monkeypatch):
    with pytest.raises(TooLarge, match="16,777,216 bytes"):
        from_arrow(SHARED[case], NAMES, MOST)


def test_batches_and_columns_count_together():
    batch, sink = (
        pa.record_batch({"user": pa.nulls(60), "age": pa.nulls(60)}),
        pa.BufferOutputStream(),
    )
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    body = sink.getvalue().to_pybytes()
    for most in (Most(119, 240, 999), Most(120, 239, 999)):
        with pytest.raises(TooLarge):
            from_arrow(body, NAMES, most)
    assert from_arrow(body, NAMES, Most(120, 240, 999))["user"].rows == 120


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_compressed_streams_within_the_limits_are_read(compression):
    columns = {"user": pa.array(range(1000)), "site": pa.array(["x" * 50] * 1000)}
    found = from_arrow(stream(columns, compression), NAMES, MOST)
    np.testing.assert_array_equal(found["user"].values, np.arange(1000))
    assert bytes(found["site"].values) == b"x" * 50_000


VIEWS = pa.array(["b", None, "ä" * 20], pa.string_view())
TEXTS = {
    "views": pa.array(["ä" * 20, "b", None], pa.string_view()),
    "slice of views": pa.array(["c", "ä" * 20, "b", None], pa.string_view())[1:],
    "dictionary": pa.array(["ä" * 20, "b", None]).dictionary_encode(),
    "dictionary of views": pa.DictionaryArray.from_arrays(pa.array([2, 0, 1]), VIEWS),
}


@pytest.mark.parametrize("case", TEXTS)
def test_text_of_each_arrow_type_is_the_same_column(case):
    plain = from_arrow(stream({"site": pa.array(["ä" * 20, "b", None])}), NAMES, MOST)["site"]
    found = from_arrow(stream({"site": TEXTS[case]}), NAMES, MOST)["site"]
    for part, expected in zip(found, plain, strict=True):
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[[1, 2]], [[3]]]),
        pa.array([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(pa.int64(), 2), 1)),
        pa.array([[["a"]], None], pa.large_list(pa.large_list(pa.string()))),
    ],
)
def test_lists_of_lists_are_refused_in_arrow_as_in_json(column):
    body = json.dumps({"rows": [{"user": value} for value in column.to_pylist()]}).encode()
    for read, content in ((from_arrow, stream({"user": column})), (from_json, body)):
        with pytest.raises(DataError, match="column user: it holds lists of lists"):
            read(content, NAMES, MOST)


NEGATIVE = {
    "most": negative_view(-(2**31)),
    "least": negative_view(-1),
    "beside others": negative_view(-(2**31), 10),
}


def run(code: str) -> None:
    """Run statements in a process of its own, which they may end."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])


def refuse_negative():
    for case, body in NEGATIVE.items():
        try:
            from_arrow(body, NAMES, MOST)
        except DataError as error:
            assert "negative length" in str(error), case  # noqa: PT017
        else:
            raise AssertionError(case)


UNREAD = {
    "dictionary of lists": pa.array([[1] * 1000]),
    "dictionary of fixed lists": pa.array([[1] * 1000], pa.list_(pa.int64(), 1000)),
    "dictionary of texts in lists": pa.array([["x" * 1000]]),
    "dictionary of objects": pa.array([{"a": "x" * 1000}]),
}


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("case", UNREAD)
def test_a_type_that_is_no_feature_is_refused_before_the_batches_are_read(
    case, listed, monkeypatch
):
    column = pa.DictionaryArray.from_arrays(INDICES, UNREAD[case])
    if listed:
        column = pa.ListArray.from_arrays(pa.array([0, 1000], pa.int32()), column)
    monkeypatch.setattr(requests, "as_feature", Mock(side_effect=AssertionError))
    with pytest.raises(DataError, match="column site: type dictionary.*is not supported"):
        from_arrow(stream({"site": column}), NAMES, MOST)


def test_columns_that_nobody_asked_for_are_not_read(monkeypatch):
    user = pa.array(range(1000))
    other = pa.DictionaryArray.from_arrays(INDICES, pa.array([{"a": "x" * 1000}]))
    found = from_arrow(stream({"other": other, "user": user, "more": other}), NAMES, MOST)
    assert list(found) == ["user"]
    np.testing.assert_array_equal(found["user"].values, user)
    assert from_arrow(stream({"other": other}), NAMES, MOST) == {}


def test_text_of_all_columns_and_batches_counts_together():
    views = pa.array(["x" * 100] * 10, pa.string_view())
    batch = pa.record_batch({"user": views, "site": views})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        for _ in range(4):
            writer.write_batch(batch)
    body = sink.getvalue().to_pybytes()
    assert from_arrow(body, NAMES, MOST._replace(bytes=8000 + len(body)))["site"].rows == 40
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 10, pa.int32()), pa.array(["x" * 1000]))
    body = stream({"user": shared, "site": shared})
    with pytest.raises(TooLarge):
        from_arrow(body, NAMES, MOST._replace(bytes=19_999))
    assert from_arrow(body, NAMES, MOST._replace(bytes=20_000))["site"].rows == 10


@pytest.mark.parametrize("name", [" user", "us\ner", ""])
def test_a_name_that_one_would_not_see_is_shown_in_quotes(name):
    body = json.dumps({"rows": [{name: [[1]]}]}).encode()
    for read, content in ((from_arrow, stream({name: pa.array([[[1]]])})), (from_json, body)):
        with pytest.raises(DataError, match=re.escape(f"column {name!r}: it holds lists of lists")):
            read(content, [name], MOST)


def fuzz() -> None:
    """Damage streams in any byte."""
    columns = {
        "user": pa.array(["a", None, "b"]).dictionary_encode(),
        "age": pa.array([[1], [], None]),
    }
    bodies = [stream(columns), stream(columns, "zstd"), stream({"site": TEXTS["views"]}, "lz4")]
    bodies += [stream({"site": text}) for text in TEXTS.values()]
    rng, refused = random.Random(0), 0
    for number in range(7000):
        body = bytearray(bodies[number % len(bodies)])
        for _ in range(rng.choice((1, 2, 4))):
            body[rng.randrange(len(body))] = rng.randrange(256)
        try:
            from_arrow(bytes(body), NAMES, MOST)
        except DataError:
            refused += 1
    assert refused


def test_damaged_arrow_streams_and_views_of_a_length_below_zero_are_data_errors():
    run("from tests.serving import test_requests as t; t.refuse_negative(); t.fuzz()")


def test_lengths_below_zero_do_not_make_room_for_others():
    body = stream({"user": pa.nulls(77)})
    assert body.count(struct.pack("<q", 77)) == 3  # of the batch, its array, and its nulls
    with pytest.raises(TooLarge):
        from_arrow(body.replace(struct.pack("<q", 77), struct.pack("<q", -77)), NAMES, MOST)


BAD_JSON = {
    "empty rows": "100,000 rows",
    "as many values": "500,000 values",
    "one row": "row 0: .* more than 131,072 bytes",
    "depth": "row 0: it is too deep",
    "digits": "row 0: an integer has more than 4,300 digits",
    "integers": "column user: an integer exceeds 64 bits",
    "text": "row 0: .* more than 131,072 bytes",
    "space": "no comma or end after row 0",
    "gzip": "the body is not JSON",
    "lists": "column user: it holds lists of lists",
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_json_that_grows_is_refused_by_name(case):
    with pytest.raises(DataError, match=BAD_JSON[case]):
        from_json(json_bombs()[case], NAMES, MOST)


def test_commas_of_texts_are_no_values():
    rows = [{"site": "a, b, c"}, {"site": [",,", "x"]}]
    body = json.dumps({"rows": rows}).encode()
    assert read_rows(body, Most(rows=2, values=3, bytes=1000)) == rows
    with pytest.raises(TooLarge, match="2 values"):
        read_rows(body, Most(rows=2, values=2, bytes=1000))


@pytest.mark.parametrize("value", ["[[], [1, 2]]", '{"a": [1, 2], "b": null}', "[[[[1, 2, 3]]]]"])
def test_values_inside_lists_and_objects_count_one_by_one(value):
    body = f'{{"rows": [{{"user": {value}}}]}}'.encode()
    assert read_rows(body, Most(1, 3, 1000))
    with pytest.raises(TooLarge):
        read_rows(body, Most(1, 2, 1000))


OTHER_JSON = {
    b'{"rows": [{"user": 1, "age": 2, "user": 1}]}': "row 0: it has 'user' twice",
    b'{"rows": [{}, {"user": {"a": 1, "a": 1}}]}': "row 1: it has 'a' twice",
    b'{"rows": [{}], "rows": [{}]}': "no comma or end after row 0",
    b'{"rows": [{}]} {}': "no comma or end after row 0",
    b'{"rows": [{},]}': "row 1: a value is missing",
    b'{"rows": [{}, 1]}': "row 1: it must be an object",
    b'{"rows": [{"site": "\xff"}]}': "the body is not JSON: from row 0: 'utf-8' codec",
    b'{"rows": [{"site": "\xc3': "the body is not JSON: from row 0: 'utf-8' codec",
    b'{"rows": [ ] }': "at least one row",
    b"[]": "the body is not JSON with rows: give",
    json.dumps({"rows": [{}] * 100_001}).encode(): "more than 100,000 rows",
}


@pytest.mark.parametrize("body", OTHER_JSON)
def test_json_of_another_form_is_refused_by_place(body):
    with pytest.raises(DataError, match=OTHER_JSON[body]):
        read_rows(body, MOST)


@pytest.mark.parametrize("indent", [None, 1])
def test_rows_are_those_of_the_decoder_wherever_they_are_cut(monkeypatch, indent):
    monkeypatch.setattr(json_rows, "_ROW", 200)
    rng, texts = random.Random(0), ("x", "é", "\u20ac", "\U0001f600", "}, {", '"', "\\")
    for _ in range(300):
        rows = [
            {name: rng.choice(texts) * rng.randrange(9) for name in NAMES[: rng.randrange(4)]}
            for _ in range(rng.randrange(1, 40))
        ]
        text = json.dumps({"rows": rows}, ensure_ascii=rng.random() < 0.5, indent=indent)
        body = text.encode("utf-8-sig" if rng.random() < 0.5 else "utf-8")
        if max(len(json.dumps(row).encode()) for row in rows) < 150:
            assert read_rows(body, MOST) == rows


@pytest.mark.parametrize(("shape", "labels"), [(9000, ("a",)), ((3000, 3), "abc"), ((70, 128), ())])
def test_an_answer_in_pieces_is_the_json_of_the_whole(shape, labels):
    predictions = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    values = predictions.tolist()
    if len(labels) > 1:
        values = [dict(zip(labels, row, strict=True)) for row in values]
    assert to_json(predictions, labels) == json.dumps({"predictions": values}).encode()

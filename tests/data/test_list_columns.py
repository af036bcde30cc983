# SPDX-License-Identifier: Apache-2.0
"""Lists that are inferred: vectors, and text that holds lists; and text that looks like them."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from sparsetrain.data import Derived, Encoder, infer
from sparsetrain.errors import DataError, DataWarning

ROWS = 600
RNG = np.random.default_rng(0)
GENRES = ["Action", "Adventure", "Comedy", "Drama", "Film-Noir", "Sci-Fi", "Children's", "War"]
WORDS = ["red", "blue", "house", "sky", "toy", "story", "king", "last", "day", "night", "of", "the"]


def some(values, least=1, most=4):
    """Some of the values, in order, for each row."""
    for _ in range(ROWS):
        count = RNG.integers(least, most + 1)
        yield [values[n] for n in sorted(RNG.choice(len(values), count, replace=False))]


def one_of(values):
    return [values[n] for n in RNG.integers(0, len(values), ROWS)]


LISTS = {
    "MovieLens genres": ("|", ["|".join(v) for v in some(GENRES)]),
    "mostly one genre": ("|", ["|".join(v) for v in some(GENRES, 1, 2)]),
    "some with none": ("|", ["|".join(v) if n % 5 else "" for n, v in enumerate(some(GENRES))]),
    "with a phrase for none": (
        "|",
        ["|".join(v) if n % 12 else "(no genres listed)" for n, v in enumerate(some(GENRES))],
    ),
    "ids of a history": ("^", ["^".join(map(str, v)) for v in some(range(99), 1, 30)]),
    "semicolons": (";", ["; ".join(v) for v in some(GENRES)]),
    "JSON of numbers": (",", [str(v) for v in some(range(10, 60), 0, 9)]),
    "JSON of texts": (",", [str(v).replace("'", '"') for v in some(GENRES[:6])]),
    "Python's lists": (",", [str(v) for v in some(GENRES, 3, 3)]),
}


@pytest.mark.parametrize("kind", LISTS)
def test_lists_in_text_are_found_and_told(kind):
    mark, texts = LISTS[kind]
    label = {"click": [0, 1] * (ROWS // 2)}
    for values in (texts, pa.array(texts).dictionary_encode()):
        found = infer(pa.table({**label, "x": values}), "click")
        assert found.columns["x"] == f"list in text, cut at {mark!r}"
        assert found.schema.derived == {"x_list": Derived("x", separator=mark)}
        assert found.schema.categories == ("x_list",)


def test_an_encoder_of_what_was_inferred_gives_bags(tmp_path):
    lists = [*some(GENRES)]
    table = pa.table({"click": [0, 1] * (ROWS // 2), "x": ["|".join(v) for v in lists]})
    pa.csv.write_csv(table, tmp_path / "rows.csv")
    schema = infer(tmp_path / "rows.csv", "click").schema
    encoder = Encoder.fit(tmp_path / "rows.csv", schema=schema)
    (bags,) = encoder.encode(table).ids
    values = encoder.values("x_list")
    found = [values[n] for n in bags.ids]
    assert found == [value for bag in lists for value in bag]


def agents():
    systems = [
        "X11; Linux x86_64",
        "Windows NT 10.0; Win64; x64",
        "Macintosh; Intel Mac OS X 10_15",
    ]
    for system in one_of(systems):
        yield f"Mozilla/5.0 ({system}; rv:{RNG.integers(9)}) Gecko/2010 Firefox/{RNG.integers(90)}"


LOOKALIKES = {
    "titles": [f"{' '.join(v)} ({RNG.integers(1950, 2020)})".title() for v in some(WORDS, 2, 5)],
    "titles with bars": [f"{' '.join(v)} | {' '.join(v[::-1])} | Site" for v in some(WORDS, 2, 5)],
    "sentences": [f"{' '.join(v)}; {' '.join(v[:2])}." for v in some(WORDS, 2, 6)],
    "names, last first": [
        f"{a}; {b}" for a, b in zip(one_of(WORDS[:6]), one_of(WORDS[6:]), strict=True)
    ],
    "user agents": [*agents()],
    "addresses": [f"https://a.com/{'/'.join(v)};id={RNG.integers(10**6)}" for v in some(WORDS)],
    "queries": [
        f"?q={a};lang={b}" for a, b in zip(one_of(WORDS), one_of(["en", "de"]), strict=True)
    ],
    "media types": one_of(["text/html; charset=utf-8", "image/png", "text/css; charset=utf-8"]),
    "codes of two parts": [
        f"{a}|{b}" for a, b in zip(one_of(["US", "DE", "FR"]), one_of(["app", "web"]), strict=True)
    ],
    "routes": [f"{a}|{b}" for a, b in zip(one_of(WORDS), one_of(WORDS), strict=True)],
    "paths of categories": one_of(["a|b|c", "a|b", "a|d|e", "f|g", "f|h|i", "f|h", "j"]),
    "a bar in one row": ["a|b" if n == 7 else text for n, text in enumerate(one_of(WORDS))],
    "dates": [f"{y};{m};{d}" for y, m, d in RNG.integers(1, 12, (ROWS, 3))],
    "times in brackets": [f"[{n % 28 + 1}/Oct/2000:13:55:{n % 60:02d}]" for n in range(ROWS)],
    "intervals": one_of(["[0, 18]", "[18, 25]", "[25, 35]", "[35, 50]", "[50, 99]"]),
    "coordinates": [f"[{a:.1f}, {b:.1f}]" for a, b in RNG.normal(10, 3, (ROWS, 2))],
    "colours": [f"[{r}, {g}, {b}]" for r, g, b in RNG.integers(0, 9, (ROWS, 3)) * 30],
    "embeddings in text": [str(RNG.normal(size=4).round(3).tolist()) for _ in range(ROWS)],
    "objects": [f'[{{"id": {n}, "name": "{v}"}}]' for n, v in enumerate(one_of(WORDS))],
    "many objects": [str([{"id": n, "name": w} for n, w in enumerate(v)]) for v in some(WORDS)],
    "hashes": [f"{a:08x}|{b:08x}" for a, b in RNG.integers(0, 2**32, (ROWS, 2))],
    "entities": [
        f"{a} &amp; {b} &amp; {a}" for a, b in zip(one_of(WORDS), one_of(WORDS), strict=True)
    ],
    "words": one_of(WORDS),
    "nothing": [""] * ROWS,
}


@pytest.mark.parametrize("kind", LOOKALIKES)
def test_text_that_looks_like_lists_is_none(kind):
    found = infer(
        {"click": [0, 1] * (ROWS // 2), "y": one_of(WORDS), "x": LOOKALIKES[kind]}, "click"
    )
    assert not found.schema.derived and not found.columns["x"].startswith("list")


@pytest.mark.parametrize("coded", [False, True])
def test_text_that_is_not_utf_8_is_named_and_bytes_are_no_list(coded):
    bytes_ = pa.array([b"a|b", b"\xff|b|a", b"b|c|b"] * (ROWS // 3))
    bytes_ = bytes_.dictionary_encode() if coded else bytes_
    rows = {"click": [0, 1] * (ROWS // 2), "x": bytes_}
    assert infer(pa.table(rows), "click").schema.categories == ("x",)
    text = pa.array([b"a|b", b"\xff|b|a", b"b|c|b"] * (ROWS // 3)).view(pa.string())
    with pytest.raises(DataError, match="row 1, column x: the text is not UTF-8"):
        infer(pa.table(rows | {"x": text.dictionary_encode() if coded else text}), "click")


def test_a_derived_name_that_a_column_has_is_another():
    rows = {"click": [0, 1] * (ROWS // 2), "x": LISTS["semicolons"][1], "x_list": one_of(WORDS)}
    schema = infer(rows, "click").schema
    assert schema.categories == ("x_list", "x_list_")
    Encoder.fit(rows, schema=schema)


def test_vectors_train_by_what_is_inferred():
    vectors = RNG.normal(size=(ROWS, 64))
    rows = {"click": [0, 1] * (ROWS // 2), "site": one_of(WORDS), "e": vectors.astype(np.float32)}
    for values in (rows["e"], [*rows["e"]], rows["e"].tolist()):
        found = infer({**rows, "e": values}, "click")
        assert found.columns["e"] == "vector of 64 numbers" and found.schema.vectors == {"e": 64}
    encoder = Encoder.fit(rows, schema=found.schema)
    np.testing.assert_array_equal(encoder.encode(rows).dense, rows["e"])


def test_lists_of_whole_numbers_are_a_vector_if_one_says_so():
    rows = {
        "click": [0, 1] * (ROWS // 2),
        "site": one_of(WORDS),
        "e": [[1, 2], [3, 4]] * (ROWS // 2),
    }
    assert infer(rows, "click").schema.categories == ("site", "e")
    assert infer(rows, "click", dense=["e"]).schema.vectors == {"e": 2}


@pytest.mark.parametrize("lists", [[[0.5], [0.5, 1.0]], [[0.5, None], [0.5, 1.0]], [[], None]])
def test_lists_that_are_no_vector_are_left_out_with_the_reason(lists):
    values = pa.array(lists * (ROWS // 2), pa.list_(pa.float64()))
    rows = pa.table({"click": [0, 1] * (ROWS // 2), "site": one_of(WORDS), "e": values})
    with pytest.warns(DataWarning, match="left out.*'e'"):
        assert infer(rows, "click").schema.categories == ("site",)

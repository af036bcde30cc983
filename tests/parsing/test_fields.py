# SPDX-License-Identifier: Apache-2.0
"""Numbers that fields spell, against Python's own reading of each text."""

import re

import numpy as np
import pytest

from sparsetrain.parsing import fields
from sparsetrain.parsing.fields import DECIMAL, EIGHT, HEX, TEXT

TEXTS = [
    *(
        "",
        "0",
        "7",
        "-1",
        "-0",
        "-",
        "007",
        "2147483647",
        "2147483648",
        "-2147483647",
        "4294967295",
    ),
    *(
        "4294967295",
        "4294967296",
        "99999999999999999999",
        "1.5",
        "1e3",
        "+1",
        " 1",
        "a",
        "true",
        "é",
        "\x7f",
    ),
    *(
        "12345678",
        "01234567",
        "00000000",
        "68fd1e64",
        "ffffffff",
        "FFFFFFFF",
        "68fd1e6",
        "68fd1e6g",
    ),
    *("68fd1e644", "/2345678", ":2345678", "1234567`", "-1234567", "9999999é"),
]


def read_fields(data, delimiter, is_key, quoted=False):
    """Read lines, which begin at an odd address."""
    characters = np.frombuffer(b"." + data, np.uint8).copy()[1:]
    lines = int(np.count_nonzero(characters == ord("\n")))
    return fields.read_fields(characters, lines, delimiter, quoted, np.asarray(is_key))


def expected(text, is_key):
    """Return the number that a text is, if any, and the flag of what it is."""
    if not text:
        return None, 0
    if is_key and re.fullmatch("[0-9a-f]{8}", text):
        return int(text, 16), HEX if re.search("^0|[a-f]", text) else EIGHT
    if is_key and re.fullmatch("0|[1-9][0-9]*", text) and int(text) < 2**32:
        return int(text), DECIMAL
    if not is_key and re.fullmatch("-?[0-9]{1,10}", text) and abs(int(text)) < 2**31:
        return (int(text), DECIMAL) if text != "-0" else (None, TEXT)
    return None, TEXT


@pytest.mark.parametrize("behind", [[], ["7", "7", "7"]], ids=["the end", "a line"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_field_is_the_number_that_it_spells(text, behind):
    lines = [[text, text, "1"], ["5", "5", text], *[behind] * 3]
    data = "".join("|".join(line) + "\n" for line in lines if line)
    read = read_fields(data.encode(), "|", np.array([False, True, True]))
    for column, row, is_key in ((0, 0, False), (1, 0, True), (2, 1, True)):
        number, flag = expected(text, is_key)
        assert read.found[column] == flag | DECIMAL
        assert read.valid[column, row] == (text != "")
        if number is not None:
            values = read.values[column].view(np.uint32) if is_key else read.values[column]
            assert values[row] == number


@pytest.mark.parametrize(
    "damage", ["1\t2\n3\n4\t5\n", "1\t2\n3\t4\t5\n", "1\t2\n\n", "1\n", "\n\n"]
)
def test_lines_of_other_numbers_of_fields_are_not_read(damage):
    assert read_fields(damage.encode(), "\t", np.array([False, True])) is None


@pytest.mark.parametrize("byte, quoted, is_read", [("\r", 0, 0), ('"', 1, 0), ('"', 0, 1)])
def test_lines_with_quotes_and_carriage_returns_are_not_read(byte, quoted, is_read):
    read = read_fields(f"1,2\n3{byte},4\n".encode(), ",", [True, False], bool(quoted))
    assert (read is not None) == is_read


@pytest.mark.parametrize("rows, dense, keys", [(1000, 3, 4), (3, 2000, 1000)])
def test_random_rows_of_several_tiles_are_read(rows, dense, keys):
    rng = np.random.default_rng(rows)
    numbers = rng.integers(-(2**31) + 1, 2**31, (rows, dense))
    numbers //= 10 ** rng.integers(0, 10, numbers.shape)
    hexes = rng.integers(0, 2**32, (rows, keys))
    texts = np.array([[f"{key:08x}" for key in row] for row in hexes])
    texts = np.concatenate([numbers.astype(str), texts], axis=1)
    valid = rng.random(texts.shape) < 0.8
    data = "".join("\t".join(row) + "\n" for row in np.where(valid, texts, "")).encode()
    read = read_fields(data, "\t", np.arange(dense + keys) >= dense)
    np.testing.assert_array_equal(read.valid.T, valid)
    found = np.concatenate([read.values[:dense], read.values[dense:].view(np.uint32)], dtype=int)
    np.testing.assert_array_equal(found.T, np.concatenate([numbers, hexes], axis=1) * valid)
    assert not (read.found & TEXT).any()


def test_a_line_of_other_fields_in_a_later_tile_is_not_read():
    rows = ["1\t2\t3\n"] * 2000
    for damage in ("1\t2\n3\n", "1\t2\t3\t4\n"):
        damaged = "".join([*rows, damage, *rows])
        assert read_fields(damaged.encode(), "\t", [True] * 3) is None

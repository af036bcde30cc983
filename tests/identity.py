# SPDX-License-Identifier: Apache-2.0
"""Identity of values in plain Python, as docs/data.md states it: the oracle of the key kernel."""

import re

BOOLEANS = {word: value for value in (0, 1) for word in (("false", "true")[value],)}
BOOLEANS |= {cased: v for word, v in [*BOOLEANS.items()] for cased in (word.title(), word.upper())}


def is_hexadecimal(text):
    return bool(re.fullmatch("[0-9a-f]{8}", text))


def whole_number(text):
    """Return the number that a text is, and whether it is written as integers are; or None."""
    if text in BOOLEANS:
        return BOOLEANS[text], True
    found = re.fullmatch(r"(-?[0-9]+)(\.0+)?", text, re.ASCII)
    if not found or not -(2**63) <= int(found[1]) < 2**64:
        return None
    return signed(int(found[1])), str(int(text)) == text if not found[2] else False


def signed(number):
    """Return the number of 64 bits that has the same bits."""
    return (number + 2**63) % 2**64 - 2**63


def key_of(value, kind):
    """Return the key of a value: a number, bytes, or None where it is missing.

    In columns of numbers, bytes are values that no row stands for.
    """
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        number = signed(int(value))
        wraps = kind == "hexadecimal" and -(2**31) <= number < 0
        return number + 2**32 if wraps else number
    if kind == "hexadecimal" and is_hexadecimal(value):
        return int(value, 16)
    number = whole_number(value)
    if number is None or (kind == "text" and not number[1]):
        return value.encode(errors="surrogatepass")
    return key_of(number[0], kind)


def kind_of(values, is_criteo=False):
    """Return the kind of a column that holds these values."""
    texts = [value for value in values if isinstance(value, str) and value]
    hexes = [text for text in texts if is_hexadecimal(text)]
    others = [text for text in texts if not is_hexadecimal(text)]
    letters = any(re.search("[a-f]", text) for text in hexes)
    if any(whole_number(text) is None for text in others) or (letters and others):
        return "text"
    return "hexadecimal" if letters or (is_criteo and not others) else "whole"

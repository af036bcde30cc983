# SPDX-License-Identifier: Apache-2.0
"""Readable names of kernels, from those that the compiler gave them.

A name is made of operators, joined by underscores and numbered to be unique:
``fused_matmul_nt1_add2_relu2``.
"""

from __future__ import annotations

import re

# In this order; what is found first is replaced first.
_WORDS = (
    ("matmul nt", "x W\N{MODIFIER LETTER CAPITAL T}"),  # forward: weights are (out, in)
    ("matmul tn", "x\N{MODIFIER LETTER CAPITAL T} y"),  # weight gradient
    ("matmul", "x W"),  # input gradient
    ("less equal where", "relu mask"),
    ("collapse sum", "sums of columns"),
    ("lookup", "lookup of rows"),
)


def in_words(name: str, product: tuple[int, int, int] | None = None) -> str:
    """Say what the kernel does; of a product, rows x columns x summed length too."""
    parts = [re.sub(r"\d+$", "", part) for part in name.removeprefix("fused_").split("_")]
    text = " ".join(part for part in parts if part)
    for symbol, words in _WORDS:
        text = text.replace(symbol, words + "," if text != symbol else words)
    text = text.strip(" ,").replace(", add relu", ", add, relu")
    size = " x ".join(map(str, product or ()))
    return f"{size}: {text}" if size else text

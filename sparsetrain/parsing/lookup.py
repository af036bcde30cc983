# SPDX-License-Identifier: Apache-2.0
"""Ids of 32-bit keys from an open-addressing hash table, by a kernel.

What is parallel: nothing; blocks of lines are encoded on several threads. Cost: one multiplication
and, in a table that fits a cache, about 4 ns for a key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.kernels.builder import buffer, extents, kernel, scalar
from sparsetrain.runtime.compiling import host_kernel
from sparsetrain.runtime.tensors import as_numpy, as_tensor, empty, tensor_at
from sparsetrain.system.locks import with_builder_lock

_LOW = 0xFFFFFFFF


def lookup_kernel(multiplier: int) -> PrimFunc:
    """Look up keys by linear probing.

    Arguments: asked (N,) uint32; words (S,) uint64, a key above its id, S a power of 2; shift, so
    that the product of a key and the multiplier modulo 2**64, shifted right by 32 + shift, is its
    slot; the id of an empty slot; found (N,) int32.
    """
    with kernel("lookup") as built:
        count, slots = extents(2)
        asked, words = buffer("asked", (count,), "uint32"), buffer("words", (slots,), "uint64")
        shift, default = scalar("shift", "int64"), scalar("default", "int32")
        found = buffer("found", (count,), "int32")
        with T.serial(0, count) as i:
            key = T.Bind(tirx.Cast("uint64", asked[i]))
            slot, word = T.alloc_local((1,), "int64"), T.alloc_local((1,), "uint64")
            T.buffer_store(slot, _slot(key, multiplier, shift), [0])
            T.buffer_store(word, words[slot[0]], [0])
            other = (word[0] >> const(32, "uint64")) != key
            with T.While(tirx.And(tirx.Cast("int32", word[0]) != default, other)):
                T.buffer_store(slot, (slot[0] + 1) & (slots - 1), [0])
                T.buffer_store(word, words[slot[0]], [0])
            T.buffer_store(found, tirx.Cast("int32", word[0]), [i])
    return built.get()


def _slot(key: Any, multiplier: int, shift: Any) -> Any:
    """The upper half of the product's lower 64 bits, without a product that needs more."""
    low = (key * const(multiplier & _LOW, "uint64")) >> const(32, "uint64")
    high = (key * const(multiplier >> 32, "uint64")) & const(_LOW, "uint64")
    upper = (low + high) & const(_LOW, "uint64")
    return tirx.Cast("int64", upper) >> shift


_kernel = with_builder_lock(host_kernel("lookup of keys", lookup_kernel))


def look_up(
    asked: np.ndarray, words: np.ndarray, multiplier: int, shift: int, default: int
) -> np.ndarray:
    """Return the ids (N,) int32 of keys (N,) uint32; `words` begin at 64 bytes."""
    found = empty(asked.shape, "int32")
    _kernel(multiplier)(as_tensor(asked), tensor_at(words), shift, default, found)
    return as_numpy(found, writable=True)

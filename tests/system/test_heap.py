# SPDX-License-Identifier: Apache-2.0
"""Memory that is freed during a compile is used again, and returned to the system afterwards."""

import os
import subprocess
import sys

from tests import heap

PROGRAM = """
import ctypes, resource
from sparsetrain.system.heap import reused_heap

c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
c.free.argtypes = [ctypes.c_void_p]
SIZE = 8 << 20

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def take():
    # As TVM's solver: blocks that are together larger than the first bound of the heap.
    before, blocks = faults(), [c.malloc(SIZE) for _ in range(3)]
    for block in blocks:
        ctypes.memset(block, 1, SIZE)
    for block in blocks:
        c.free(block)
    return faults() - before

with reused_heap():
    take()
    print(max(take() for _ in range(5)))
print(take())
"""


def test_a_compile_uses_freed_memory_again_and_returns_it_at_its_end() -> None:
    environ = {n: v for n, v in os.environ.items() if n not in heap.VARIABLES}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    inside, after = map(int, done.stdout.split())
    assert inside < 100
    assert after > 1000

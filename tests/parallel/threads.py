# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads of one process: the engine of tests, deterministic and without MPI."""

import time
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

import pytest

from sparsetrain.errors import ParallelError
from sparsetrain.parallel.comm import Comm


class World:
    """What the ranks share."""

    def __init__(self, size, deadline):
        self.size, self.deadline = size, deadline
        self.queues = {(a, b): SimpleQueue() for a in range(size) for b in range(size)}
        self.news = [None] * size


class ThreadComm(Comm):
    def __init__(self, world, rank):
        self.world, self.rank, self.size = world, rank, world.size
        self.hosts = [f"host{n}" for n in range(world.size)]

    def transfer(self, sends, receives):
        for rank, array in sends:
            self.world.queues[self.rank, rank].put(array.copy())
        for rank, array in receives:
            array[...] = self._next(rank).reshape(array.shape)

    def _next(self, rank):
        limit = time.monotonic() + self.world.deadline
        while time.monotonic() < limit:
            news = self.world.news[self.rank]  # read first: arrays sent before it still arrive
            try:
                return self.world.queues[rank, self.rank].get(timeout=0.01)
            except Empty:
                if news:
                    raise ParallelError(news) from None
        text = f"{self.name}: no answer from {self.name_of(rank)} for {self.world.deadline:g} s"
        self.tell(text, ParallelError.exit_code)
        raise ParallelError(text)

    def tell(self, text, exit_code):
        for rank in self._others:
            self.world.news[rank] = self.world.news[rank] or text


# Each has a pool of kernels' threads of its own for as long as it lives, so they are used again.
_RANKS = ThreadPoolExecutor(16)


def run_ranks(size, work, deadline=600):
    """Call ``work(comm)`` as each rank; return the results, or the errors, by rank."""
    world = World(size, deadline)

    def run(rank):
        comm = ThreadComm(world, rank)
        try:
            with comm.guard():
                return work(comm)
        except BaseException as error:
            return error

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVM_NUM_THREADS", "1")  # of pools that begin now
        return list(_RANKS.map(run, range(size)))


def all_of(results):
    """The results, if no rank raised."""
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results

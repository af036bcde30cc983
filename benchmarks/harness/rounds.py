# SPDX-License-Identifier: Apache-2.0
"""Rounds of turns: arms alternate, one works at a time, until each has enough clean steps.

A turn begins with a few unmeasured steps, because the arm before it emptied the caches. Two things
are watched meanwhile: processor time of the idle arms (a spinning thread pool would slow the one at
work), and what everybody else on the machine uses. A turn waits for a quiet machine; one that
others disturbed does not count, and a further round is played for all. Both as long as patience
lasts.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from harness.remote import Worker, machine_busy_seconds, total_cpu_seconds

ROUNDS = 6
WARM_STEPS = 3
PILOT_STEPS = 27  # before the first round, with the warm ones 30
LEAST_TURN_SECONDS = 0.25  # the system counts processor time in hundredths of a second
DISTURBED = 0.10  # share of the cores that others may use
LOOK_SECONDS = 0.1  # between turns; thread pools spin for some time after their last work


@dataclass
class Turn:
    """Answer of an arm, and the cores that others kept busy."""

    answer: dict[str, Any]
    idle_cores: float
    other_cores: float


@dataclass
class Score:
    """All turns of an arm that may use `threads` cores."""

    threads: int
    turns: list[Turn] = field(default_factory=list)

    @property
    def clean(self) -> list[Turn]:
        """Turns that nobody disturbed."""
        return [turn for turn in self.turns if turn.other_cores <= DISTURBED * self.threads]

    @property
    def is_clean(self) -> bool:
        """Return whether there are enough of them."""
        return len(self.clean) >= ROUNDS

    @property
    def counted(self) -> list[Turn]:
        """The clean turns, or all if there are not enough."""
        return self.clean if self.is_clean else self.turns

    def samples(self, name: str) -> list[float]:
        """Measurements called `name` of the turns that count."""
        return [value for turn in self.counted for value in turn.answer[name]]


class Rounds:
    """Lets workers take turns.

    Parameters
    ----------
    workers : list of Worker
        Started, with no work pending.
    threads : int
        Cores that each may use.
    patience : float
        Seconds to spend on waiting and on further rounds if the machine is not quiet.
    ended : callable, optional
        Told the name and the score of each arm that has had its turns, again after further ones.
    """

    def __init__(
        self,
        workers: list[Worker],
        threads: int,
        patience: float,
        ended: Callable[[str, Score], None] = lambda _arm, _score: None,
    ) -> None:
        self.ended = ended
        self.workers, self.threads, self.patience = workers, threads, patience
        self.scores = {worker.arm: Score(threads) for worker in workers}
        self.pilot: dict[str, dict[str, Any]] = {}  # what the arms answered before the first round

    def play(self, steps: int) -> None:
        """Measure at least `steps` steps of each arm."""
        timed = self._steps_per_turn(steps)
        number = 0
        while number < ROUNDS or (self.patience > 0 and not self._is_clean()):
            shift = number % len(self.workers)  # nobody always comes after the same neighbour
            began = time.monotonic()
            for worker in self.workers[shift:] + self.workers[:shift]:
                score = self.scores[worker.arm]
                score.turns.append(self.turn(worker, timed))
                if len(score.turns) >= ROUNDS:
                    self.ended(worker.arm, score)
            number += 1
            if number > ROUNDS:
                self.patience -= time.monotonic() - began

    def turn(self, worker: Worker, timed: int) -> Turn:
        """One turn of `timed` measured steps, when the machine is quiet or patience is out."""
        self._wait_for_quiet()
        idle = [other for other in self.workers if other is not worker]

        def used() -> tuple[float, float, float]:
            return machine_busy_seconds(), total_cpu_seconds(idle), worker.cpu_seconds()

        began, before = time.perf_counter(), used()
        answer = worker.turn(WARM_STEPS, timed)
        seconds = time.perf_counter() - began
        busy, idling, working = (b - a for a, b in zip(before, used(), strict=True))
        return Turn(answer, idling / seconds, max(0.0, busy - idling - working) / seconds)

    def clean_turn(self, worker: Worker, timed: int) -> Turn:
        """A turn that nobody disturbed, or the last one tried when patience is out."""
        while True:
            began = time.monotonic()
            turn = self.turn(worker, timed)
            if turn.other_cores <= DISTURBED * self.threads or self.patience <= 0:
                return turn
            self.patience -= time.monotonic() - began

    def _is_clean(self) -> bool:
        return all(score.is_clean for score in self.scores.values())

    def _steps_per_turn(self, steps: int) -> int:
        """As many for every arm, so that all see the same batches."""
        answers = {worker.arm: worker.turn(WARM_STEPS, PILOT_STEPS) for worker in self.workers}
        self.pilot = {arm: answer for arm, answer in answers.items() if "seconds" in answer}
        fastest = min(min(answer["seconds"]) for answer in self.pilot.values())
        return max(ceil(steps / ROUNDS), ceil(LEAST_TURN_SECONDS / fastest))

    def _wait_for_quiet(self) -> None:
        while True:
            before = machine_busy_seconds()
            time.sleep(LOOK_SECONDS)
            busy = (machine_busy_seconds() - before) / LOOK_SECONDS
            if busy <= DISTURBED * self.threads or self.patience <= 0:
                return
            self.patience -= LOOK_SECONDS

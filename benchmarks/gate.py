"""One long fit() in which blocks of several ways to save alternate, timed at fit's own train function.

Blocks of separate fits drift apart by more than a save costs on a shared machine. So every arm saves within the
same fit: a block is one save, the steps behind it and a wait until nothing is being written; rounds of blocks are
shuffled. Two arms save nothing: what they differ by is the noise.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

import keras_dist_callbacks as kdc
from benchmarks.models import Workload

_LEAD_STEPS = 3
_MS = 1e3


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Arm:
    """A way to save.

    Attributes:
        name: For tables.
        save: Called between two steps, where callbacks run.
        drain: Waits until nothing is being written.
        callback: What fit() must be given for it.
        made: How many of its saves are complete. Defaults to all that it was asked for.
        finished: When the newest of them was complete, as `time.perf_counter` tells it.
    """

    name: str
    save: Callable[[], Any] = _nothing
    drain: Callable[[], Any] = _nothing
    callback: Any = None
    made: Callable[[], int] | None = None
    finished: Callable[[], float] | None = None


@dataclass
class Block:
    """Timings of a block in ms.

    Attributes:
        arm: Which arm saved at its begin.
        round: Which round; 0 is the first save of each arm.
        gap: Between the last step before the save and the first one behind it.
        steps: Each step.
        gaps: Between later steps.
        wait: How long was waited for the writing to end.
        complete: From the begin of the gap until the arm says that its newest save was complete.
        cpu: Processor time of the thread that trains, in each call of the arm's `save`.
        made: Saves that were complete at the block's end.
        made_in_all: And once the writing had ended.
    """

    arm: str
    round: int
    gap: float = 0.0
    steps: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    wait: float = 0.0
    complete: float = 0.0
    cpu: list[float] = field(default_factory=list)
    made: int = 0
    made_in_all: int = 0


@dataclass(frozen=True)
class _Plan:
    length: int
    every: int
    saves: int
    drain: str


class _Driver(keras.callbacks.Callback):
    """Stands in for fit's train function, and saves where callbacks do."""

    def __init__(self, train: Callable[[Any], Any], order: Iterator[tuple[Arm, int]], plan: _Plan) -> None:
        super().__init__()
        self._train, self._order, self._plan = train, order, plan
        self._before = 0
        self._arm, self._block, self._left = Arm("lead"), Block("lead", 0), _LEAD_STEPS
        self._due: Arm | None = None
        self._exit = self._began = 0.0
        self.done: list[Block] = []

    def __call__(self, iterator: Any) -> Any:
        entry = time.perf_counter()
        self._note_gap((entry - self._exit) * _MS)
        first = not self._block.steps
        if first and self._plan.drain == "before":
            self._wait()
        began = time.perf_counter()
        result = self._train(iterator)
        self._block.steps.append((time.perf_counter() - began) * _MS)
        if first and self._plan.drain == "after_first":
            self._wait()
        self._left -= 1
        if not self._left:
            self._next()
        self._exit = time.perf_counter()
        return result

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        begins, steps = self._due is not None, len(self._block.steps)
        if begins or (steps and steps % self._plan.every == 0 and len(self._block.cpu) < self._plan.saves):
            self._due = None
            began = time.thread_time()
            self._arm.save()
            self._block.cpu.append((time.thread_time() - began) * _MS)

    def _made(self) -> int:
        return self._before + len(self._block.cpu) if self._arm.made is None else self._arm.made()

    def _note_gap(self, gap: float) -> None:
        if self._block.steps:
            self._block.gaps.append(gap)
        else:
            self._block.gap, self._began = gap, self._exit

    def _wait(self) -> None:
        began = time.perf_counter()
        self._arm.drain()
        self._block.wait = (time.perf_counter() - began) * _MS
        if self._arm.finished is not None:
            self._block.complete = (self._arm.finished() - self._began) * _MS

    def _next(self) -> None:
        self._block.made = self._made() - self._before
        if self._plan.drain == "at_end":
            self._wait()
        self._block.made_in_all = self._made() - self._before
        if self._arm.save is not _nothing:
            os.sync()  # what one arm left in the page cache must not be charged to the next
        if self._block.arm != "lead":
            self.done.append(self._block)
        arm, number = next(self._order, (Arm("end"), 0))
        self._arm, self._due, self._block, self._left = arm, arm, Block(arm.name, number), self._plan.length
        self._before = 0 if arm.made is None else arm.made()


kdc.advanced.register_callback_state(
    _Driver, None
)  # a backup would look through all that was measured so far, ever longer


def run(
    workload: Workload,
    arms: Sequence[Arm],
    *,
    rounds: int,
    length: int,
    drain: str,
    seed: int,
    every: int = 0,
    saves: int = 1,
) -> dict[str, Any]:
    """Lets arms save in turn within one fit().

    Args:
        workload: What to train.
        arms: All ways to save; their order is shuffled in each round.
        rounds: How often each arm saves, after a first round that is told apart.
        length: Steps of a block.
        drain: When to wait for the writing to end: `"before"` the first step of a block, `"after_first"`, or
            `"at_end"` of the block.
        seed: For the order.
        every: Steps between two saves of a block. Defaults to `length`.
        saves: In each block, one at its begin among them.

    Returns:
        All blocks, the share of the processors that was busy meanwhile, and the bytes of the state.
    """
    model = workload.model
    model.fit(workload.data, steps_per_epoch=2, verbose=0)  # traces the train function
    order = _shuffled(arms, rounds, seed)
    driver = _Driver(model.train_function, iter(order), _Plan(length, every or length, saves, drain))
    model.train_function = driver
    steps = _LEAD_STEPS + length * len(order)
    callbacks = [driver, *(arm.callback for arm in arms if arm.callback is not None)]
    began, used = time.monotonic(), _processor_seconds()
    model.fit(workload.data, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
    busy = (_processor_seconds() - used) / (time.monotonic() - began) / (os.cpu_count() or 1)
    blocks = [_rounded(block) for block in driver.done]
    return {"state_bytes": workload.state_bytes, "busy": round(busy, 3), "blocks": blocks}


def _processor_seconds() -> float:
    used = os.times()
    return used.user + used.system


def _shuffled(arms: Sequence[Arm], rounds: int, seed: int) -> list[tuple[Arm, int]]:
    generator = random.Random(seed)  # noqa: S311 - an order
    order = []
    for number in range(rounds + 1):
        order += [(arm, number) for arm in generator.sample(list(arms), len(arms))]
    return order


def _rounded(block: Block) -> dict[str, Any]:
    return {
        "arm": block.arm,
        "round": block.round,
        "gap": round(block.gap, 4),
        "steps": [round(s, 3) for s in block.steps],
        "gaps": [round(g, 4) for g in block.gaps],
        "wait": round(block.wait, 3),
        "complete": round(block.complete, 3),
        "cpu": [round(c, 3) for c in block.cpu],
        "made": [block.made, block.made_in_all],
    }

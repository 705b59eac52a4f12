"""Trainings that no one thought of: pipeline, model, callbacks, validation data and kills drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.exactness_case import Arguments, Case
from tests.support.exactness_generated_inputs import generate, validation
from tests.support.exactness_generated_models import MODELS, callbacks, model

PREFIX = "generated "
MIRRORED_SHARE = 8  # one in so many


@dataclass(frozen=True)
class Generated:
    """A case with what the table of written cases has no place for.

    Attributes:
        case: What is trained. Nothing is expected of it.
        words: What it is made of.
        epochs: How many epochs are trained.
        kills: Epoch and batch before which each attempt but the last is killed.
        save_freq: How often it is backed up.
        strategy: Under which strategy it is trained.
    """

    case: Case
    words: str
    epochs: int
    kills: tuple[tuple[int, int], ...]
    save_freq: int | str
    strategy: str

    def __str__(self) -> str:
        kills = " and ".join(f"{epoch}/{batch}" for epoch, batch in self.kills)
        return f"{self.words} | {self.strategy}, save_freq {self.save_freq}, {self.epochs} epochs, killed at {kills}"


def generated(seed: int) -> Generated:
    """The same in every process: all is drawn here, before anything is built."""
    rng = random.Random(seed)  # noqa: S311 - tests are to be the same again
    strategy = "mirrored" if rng.randrange(MIRRORED_SHARE) == 0 else "default"
    name = model(rng, mirrored=strategy == "mirrored")
    chosen = MODELS[name]
    given = generate(rng, full_batches=chosen.full_batches, even=strategy == "mirrored")
    validated, extra = validation(rng, given.batch) if chosen.evaluates else ("none", dict)
    called, made = callbacks(rng, chosen)
    epochs = rng.choice([3, 3, 4])
    save_freq = rng.choice([1, 1, 2, "epoch"])

    def fit(_: Any) -> Arguments:
        return {**given.make(), **extra()}

    return Generated(
        Case("exact", fit, lambda: chosen.build(given.batch), made, resumed=chosen.resumed),
        f"{given.words} | {name} | callbacks {called} | validation {validated}",
        epochs,
        _kills(rng, epochs, given.batches, save_freq),
        save_freq,
        strategy,
    )


def _kills(rng: random.Random, epochs: int, batches: int, save_freq: int | str) -> tuple[tuple[int, int], ...]:
    """Where it is killed: after the first backup, mostly after the first epoch, sometimes twice."""
    places = [(epoch, batch) for epoch in range(1, epochs) for batch in range(min(batches, 9))]
    if save_freq != "epoch" and rng.random() < 0.15:
        places = [(0, batch) for batch in range(int(save_freq), min(batches, 9))] or places
    first = rng.choice(places)
    later = [(epoch, batch) for epoch in range(1, epochs) for batch in range(min(batches, 9)) if (epoch, batch) > first]
    return (first, rng.choice(later)) if later and rng.random() < 0.2 else (first,)


def case(seed: int) -> Case:
    """What the seed trains."""
    return generated(seed).case


class _Cases(Mapping[str, Case]):
    """Cases by their names, made when they are asked for."""

    def __getitem__(self, name: str) -> Case:
        if name not in self:
            raise KeyError(name)
        return case(seed_of(name))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.startswith(PREFIX) and name.removeprefix(PREFIX).isdigit()

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


CASES: Mapping[str, Case] = _Cases()


def seed_of(name: str) -> int:
    return int(name.removeprefix(PREFIX))

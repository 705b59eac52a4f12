"""How large, how often, where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

Case = dict[str, Any]
"""The arguments of one measurement; it runs in a process of its own."""

Outcome = dict[str, Any]
"""What a measurement found, as JSON; `case` holds its arguments."""

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Config:
    """What the command line asked for.

    Attributes:
        sizes: Sizes of the state in MB (weights and Adam's slots); None: those that a table is about.
        repeats: Rounds; None: what a table needs.
        quick: Small sizes and few rounds: shows that everything runs, proves nothing.
        seed: For the order of blocks.
        scratch: Where the saves go; None: the system's directory for temporary files.
    """

    sizes: tuple[int, ...] | None = None
    repeats: int | None = None
    quick: bool = False
    seed: int = 0
    scratch: Path | None = None

    def sizes_or(self, *default: int) -> tuple[int, ...]:
        """The sizes to measure, where a table is about `default`."""
        return self.sizes or ((10, 20) if self.quick else default)

    def rounds(self, default: int) -> int:
        """How many rounds, where a table needs `default`."""
        return self.repeats or (2 if self.quick else default)

    @property
    def small_variables(self) -> int:
        """How many small variables the tables about them have."""
        return 300 if self.quick else 6000

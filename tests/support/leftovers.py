"""What is left in a directory for temporary files."""

from __future__ import annotations

from pathlib import Path


def leftovers(directory: Path) -> list[Path]:
    """All but what this process needs to make temporary files there."""
    own = set(directory.glob("kdc-*-*"))
    needed = own | {path / "lock" for path in own}
    return [path for path in directory.rglob("*") if path not in needed]

"""What listings of a store tell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FileInfo:
    """One object of a listing: its name relative to the listed directory, and its size in bytes."""

    name: str
    size: int


@dataclass(frozen=True)
class UnfinishedUpload:
    """An upload in parts that was begun and neither finished nor given up; it takes space and shows no object.

    Attributes:
        name: Where the object would have been, relative to the directory.
        age: Seconds since it was begun.
    """

    name: str
    age: float

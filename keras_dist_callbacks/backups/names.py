"""The names that a backup directory's own files have; what is named otherwise is not ours: never read nor deleted.

Numbers are looked at by pattern: `str.isdigit` is true for digits that `int` does not take.
"""

from __future__ import annotations

import re

from keras_dist_callbacks.storage.local_files import final_name

OWNERS, BLOBS, COMMITS, DAMAGED, ROLLED_BACK = "owners", "blobs", "commits", "damaged", "rolled-back"
JOURNALS = "journals"
OWNER, WITNESS = ".json", ".committed"
GENERATION = "(?:[0-9]{6}|[1-9][0-9]{6,7})"  # as it is written, with zeros in front up to six digits alone
SEQUENCE = "(?:[0-9]{8}|[1-9][0-9]{8,11})"
RANDOM = r"[0-9a-f]{12}"
HASH = r"[0-9a-f]{32}"

_COMMIT = rf"({GENERATION})-({SEQUENCE})-({RANDOM})\.json"
_BLOB = rf"{HASH}\.safetensors"
_commit = re.compile(_COMMIT)
_damaged = re.compile(rf"[0-9a-f]{{8}}-({_COMMIT})")
_owner = re.compile(rf"({GENERATION}){re.escape(OWNER)}")
_blob_path = re.compile(rf"{BLOBS}/({GENERATION})/{_BLOB}")
_FINAL = {
    COMMITS: _COMMIT,
    ROLLED_BACK: _COMMIT,
    OWNERS: rf"{GENERATION}({re.escape(OWNER)}|{re.escape(WITNESS)})",
    DAMAGED: rf"[0-9a-f]{{8}}-{_COMMIT}",
    BLOBS: _BLOB,
    JOURNALS: rf"{GENERATION}\.json",
    "": "probe|doctor",
}
_finals = {place: re.compile(final, re.DOTALL) for place, final in _FINAL.items()}
_blob = re.compile(_BLOB)


def owner_name(generation: int, suffix: str = OWNER) -> str:
    """Returns the path of an owner record, or of what lies next to it."""
    return f"{OWNERS}/{generation:06d}{suffix}"


def owner_generation(name: str) -> int | None:
    """Returns the generation in an owner record's file name, or None if it is not one."""
    found = _owner.fullmatch(name)
    return None if found is None else int(found.group(1))


def journal_name(number: int) -> str:
    """Returns the path of what a finished training leaves."""
    return f"{JOURNALS}/{number:06d}.json"


def journal_number(name: str) -> int | None:
    """Returns the number in a journal's file name, or None if it is not one."""
    return int(name.removesuffix(".json")) if _finals[JOURNALS].fullmatch(name) else None


def commit_name(generation: int, sequence: int, token: str) -> str:
    """Returns the path of a manifest."""
    return f"{COMMITS}/{generation:06d}-{sequence:08d}-{token}.json"


def commit_parts(name: str) -> tuple[int, int, str] | None:
    """Generation, sequence and token in a manifest's file name, or None if it is not one."""
    found = _commit.fullmatch(name)
    return None if found is None else (int(found.group(1)), int(found.group(2)), found.group(3))


def quarantined_name(name: str) -> str | None:
    """Returns the manifest's own file name in that of one which was quarantined, or None if it is not one."""
    found = _damaged.fullmatch(name)
    return None if found is None else found.group(1)


def blob_directory(generation: int) -> str:
    """Returns where the blobs of a generation are."""
    return f"{BLOBS}/{generation:06d}"


def blob_generation(path: str) -> int | None:
    """Returns the generation in a blob's path, or None if it is not one."""
    found = _blob_path.fullmatch(path)
    return None if found is None else int(found.group(1))


def is_blob(name: str) -> bool:
    """Returns whether a file below a generation's directory is a blob, or an unfinished one."""
    return bool(_blob.fullmatch(name)) or is_partial(name, BLOBS)


def is_partial(name: str, place: str) -> bool:
    """Returns whether a file is what an interrupted write of ours left in one of the directories; `""` is the root."""
    final = final_name(name)
    return final is not None and bool(_finals[place].fullmatch(final))

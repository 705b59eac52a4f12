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
_FILE = {
    COMMITS: re.compile(_COMMIT),
    ROLLED_BACK: re.compile(_COMMIT),
    OWNERS: re.compile(rf"({GENERATION})({re.escape(OWNER)}|{re.escape(WITNESS)})"),
    DAMAGED: re.compile(rf"[0-9a-f]{{8}}-({_COMMIT})"),
    BLOBS: re.compile(_BLOB),
    JOURNALS: re.compile(rf"({GENERATION})\.json"),
    "": re.compile("probe|doctor"),
}
_BLOB_PATH = re.compile(rf"{BLOBS}/({GENERATION})/{_BLOB}")


def owner_name(generation: int, suffix: str = OWNER) -> str:
    """Returns the path of an owner record, or of what lies next to it."""
    return f"{OWNERS}/{generation:06d}{suffix}"


def owner_generation(name: str) -> int | None:
    """Returns the generation in an owner record's file name, or None if it is not one."""
    found = _FILE[OWNERS].fullmatch(name)
    return int(found[1]) if found is not None and found[2] == OWNER else None


def journal_name(number: int) -> str:
    """Returns the path of what a finished training leaves."""
    return f"{JOURNALS}/{number:06d}.json"


def journal_number(name: str) -> int | None:
    """Returns the number in a journal's file name, or None if it is not one."""
    found = _FILE[JOURNALS].fullmatch(name)
    return None if found is None else int(found[1])


def commit_name(generation: int, sequence: int, token: str) -> str:
    """Returns the path of a manifest."""
    return f"{COMMITS}/{generation:06d}-{sequence:08d}-{token}.json"


def commit_parts(name: str) -> tuple[int, int, str] | None:
    """Generation, sequence and token in a manifest's file name, or None if it is not one."""
    found = _FILE[COMMITS].fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]), found[3])


def quarantined_name(name: str) -> str | None:
    """Returns the manifest's own file name in that of one which was quarantined, or None if it is not one."""
    found = _FILE[DAMAGED].fullmatch(name)
    return None if found is None else found[1]


def blob_directory(generation: int) -> str:
    """Returns where the blobs of a generation are."""
    return f"{BLOBS}/{generation:06d}"


def blob_generation(path: str) -> int | None:
    """Returns the generation in a blob's path, or None if it is not one."""
    found = _BLOB_PATH.fullmatch(path)
    return None if found is None else int(found[1])


def is_blob(name: str) -> bool:
    """Returns whether a file below a generation's directory is a blob, or an unfinished one."""
    return bool(_FILE[BLOBS].fullmatch(name)) or is_partial(name, BLOBS)


def is_partial(name: str, place: str) -> bool:
    """Returns whether a file is what an interrupted write of ours left in one of the directories; `""` is the root."""
    final = final_name(name)
    return final is not None and bool(_FILE[place].fullmatch(final))

"""Who writes the checkpoints of a template into a directory: the run that began last; every earlier one must stop.

Its owner record is where the note of the training's end is, and takes the place of the one before. A run looks at it
before it publishes a file. What is there then and was neither there when this process claimed the files, nor written by
this process, is that of a newer run. So several callbacks and fits of one process share what is theirs, and where a
record is missing or damaged, nobody is taken for a newer run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from keras_dist_callbacks.backups import owner_records, record_io
from keras_dist_callbacks.backups.owner_records import OwnerRecord
from keras_dist_callbacks.base.errors import FencedError, StorageError
from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.base.terminal import warn
from keras_dist_callbacks.checkpoints.end_note import hidden_places
from keras_dist_callbacks.storage.storage import Storage

_KIND = "checkpoint-owner"


@dataclass
class _KnownOwners(Shared):
    """Tokens of the records that this process has written, or has found when it claimed something."""

    tokens: set[str] = field(default_factory=set)


def claim(storage: Storage, template: str) -> None:
    """Becomes the owner, which fences every earlier one.

    A store that does not take the record gets a warning: then nobody is fenced.

    Args:
        storage: The directory of the checkpoints.
        template: That of the file names.
    """
    mine = owner_records.describe_owner({}, "ModelCheckpoint", made_directory=False)
    known, places = shared(_KnownOwners).tokens, list(hidden_places(storage, _KIND, template))
    earlier = [_read(place, name) for place, name in places]
    known.update(owner.token for owner in earlier if owner is not None)
    known.add(owner_records.OWNER.decode(mine, _KIND).token)
    is_written, failure = False, None
    for (place, name), owner in zip(places, earlier, strict=True):
        if is_written and owner is None:
            continue
        try:  # also over one that only a run which sees the directory under another name can have written
            record_io.write(place, name, mine)
            is_written = True
        except StorageError as error:
            failure = error
    if not is_written:
        warn(
            f"cannot record that this run writes {storage.display(template)} now, so an older run that still writes "
            f"there does not stop: {failure}"
        )


def check(storage: Storage, template: str) -> None:
    """Makes sure that no newer run has claimed the checkpoints.

    Args:
        storage: Their directory.
        template: That of the file names.

    Raises:
        FencedError: One has.
        StorageError: The store cannot be read.
    """
    for place, name in hidden_places(storage, _KIND, template):
        owner = _read(place, name)
        if owner is not None and owner.token not in shared(_KnownOwners).tokens:
            raise FencedError(
                f"a newer run writes {storage.display(template)} now, and this one must stop, so that their files do "
                f"not mix. The newer run: {owner}. Give each run a directory of its own"
            )


def _read(place: Storage, name: str) -> OwnerRecord | None:
    try:
        return owner_records.read(place, name)
    except StorageError as error:
        if error.forbidden:  # another account may see the directory, but not what is next to it
            return None
        raise

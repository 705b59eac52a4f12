"""Checkpoint files in a directory or store: list, verify, fetch, publish and delete them.

Each file carries its own record, so a file may be copied, moved or renamed, by any program. Newest means the largest
(generation, sequence), never a time or a name. A file without a record is incomplete, or another program wrote it.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from keras_dist_callbacks.backups.record_io import read_verified
from keras_dist_callbacks.base.errors import DamagedBackupError, FencedError, StorageError
from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.base.terminal import first_few, warn
from keras_dist_callbacks.checkpoints.foreign import ForeignCheckpoint, recognized
from keras_dist_callbacks.checkpoints.record import (
    EXTENSIONS,
    INCOMPLETE,
    Checkpoint,
    CheckpointRecord,
    append_record,
    read_local,
    read_record,
    read_verified_record,
)
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.local_files import final_name
from keras_dist_callbacks.storage.redaction import redact
from keras_dist_callbacks.storage.spelling import require_plain
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.storage.transfer import FileInfo

_READERS = 16
_PLACEHOLDER = re.compile(r"\\\{.*?\\\}")
_NUMBER = r"(?:[-+]?(?:[0-9][0-9.,_]*(?:e[-+]?[0-9]+)?|nan|inf)%?)"


@dataclass
class _Saved(Shared):
    sequence: Iterator[int] = field(default_factory=lambda: itertools.count(1))


def next_sequence() -> int:
    """Returns the next sequence number; one counter for all callbacks of this process, so that they have one order."""
    return next(shared(_Saved).sequence)


@dataclass(frozen=True)
class Problem:
    """A file that is not used, and why; as a text, a sentence.

    Attributes:
        name: Its name in the directory.
        path: Its path or URL, without credentials.
        kind: `"damaged"`; `"incomplete"`: without a record, but named like files that have one; or `"link"`.
        error: Of a damaged one, what reading it has shown.
    """

    name: str
    path: str
    kind: Literal["damaged", "incomplete", "link"]
    error: str = ""

    def __str__(self) -> str:
        if self.kind == "link":
            return f"{self.path} is a symbolic link, which is not followed; replace it by the file itself"
        return self.error or f"{self.path} has no record: {INCOMPLETE}"


def damaged(storage: Storage, name: str, error: DamagedBackupError) -> Problem:
    """Returns what is wrong with a file that was read."""
    return Problem(name, storage.display(name), "damaged", str(error))


@dataclass(frozen=True)
class Listing:
    """The model files of a directory; only the last bytes of each were read.

    Attributes:
        checkpoints: Those with a record, newest first; their content is not verified.
        problems: Files whose record is damaged or says another size, or that were not written to the end.
        foreign: What has no record otherwise: another program wrote it.
        generation: The largest in any record, 0 without records.
    """

    checkpoints: tuple[Checkpoint, ...] = ()
    problems: tuple[Problem, ...] = ()
    foreign: tuple[ForeignCheckpoint, ...] = ()
    generation: int = 0

    @property
    def templates(self) -> set[str]:
        """Those of the checkpoints."""
        return {one.record.template for one in self.checkpoints}


def split_filepath(path: str) -> tuple[str, str]:
    """Returns a path or URL as its directory and its last part."""
    directory, separator, name = path.rpartition("/")
    if not separator:
        return ".", name
    if directory.endswith(":/"):
        return f"{directory}/", name  # `memory://name`
    return directory or "/", name


def split_directory(path: str) -> tuple[str, str | None]:
    """Returns the directory that a path or URL of checkpoints names, and the template or name of files if it has one.

    Raises:
        ConfigError: The name is not one that files can have.
    """
    if not path.endswith(EXTENSIONS):
        return path, None
    directory, name = split_filepath(path)
    require_plain(name, redact(path))
    return directory.replace("{{", "{").replace("}}", "}"), name


def pattern_of(template: str) -> re.Pattern[str]:
    """Matches the names that are made from a template; all values that Keras puts into one are numbers."""
    return re.compile(_PLACEHOLDER.sub(_NUMBER, re.escape(template)))


def find(storage: Storage, template: str | None = None) -> Listing:
    """Lists the model files of a directory and reads their records.

    Args:
        storage: The directory; it need not exist.
        template: Only checkpoints made from this template, or of this name. Defaults to all.

    Raises:
        BackupMismatchError: A newer version of this package wrote one of them.
        StorageError: The store cannot be read.
    """
    listed = storage.files()
    files = [info for info in listed if info.name.endswith(EXTENSIONS)]
    links = {info.name: target for info in files if (target := storage.link_target(info.name)) is not None}
    files = [info for info in files if info.name not in links]
    with ThreadPoolExecutor(_READERS) as pool:
        outcomes = list(pool.map(lambda info: _examine(storage, info), files))
    found: list[Checkpoint] = []
    problems: list[Problem] = []
    bare: list[str] = []
    for info, outcome in zip(files, outcomes, strict=True):
        if isinstance(outcome, CheckpointRecord):
            found.append(Checkpoint(info.name, outcome))
        elif isinstance(outcome, DamagedBackupError):
            problems.append(damaged(storage, info.name, outcome))
        elif outcome is None:
            bare.append(info.name)  # else it was deleted since the listing
    # A link to another file of the directory is harmless: that file is listed itself.
    outward = [name for name, target in links.items() if target.parent != Path(storage.root).resolve()]
    problems += [Problem(name, storage.display(name), "link") for name in outward]
    # A file without a record that is named like those of a template was not finished; others are of other programs.
    patterns = [pattern_of(template) for template in {one.record.template for one in found}]
    incomplete = [name for name in bare if any(fits.fullmatch(name) for fits in patterns)]
    problems += [Problem(name, storage.display(name), "incomplete") for name in incomplete]
    mine = [one for one in found if template is None or template in (one.record.template, one.name)]
    ours = {info.name for info in listed if info.name.endswith(EXTENSIONS)}.difference(bare).union(incomplete)
    others = [one for one in recognized([info.name for info in listed]) if one.name not in ours]
    return Listing(
        checkpoints=tuple(sorted(mine, key=lambda one: one.order, reverse=True)),
        problems=tuple(problems),
        foreign=tuple(one for one in others if template is None or pattern_of(template).fullmatch(one.name)),
        generation=max([0, *(one.record.generation for one in found)]),
    )


def latest_verified(storage: Storage, template: str | None = None, *, into: Path | None = None) -> Checkpoint | None:
    """Returns the newest checkpoint whose content matches its record; a warning names damaged and incomplete files.

    Args:
        storage: The directory; it need not exist.
        template: Only checkpoints made from this template, or of this name. Defaults to all.
        into: A local directory that gets a copy of the file. Defaults to no copy.

    Returns:
        The checkpoint, or None without a file that has a record.

    Raises:
        DamagedBackupError: There are checkpoints, but none of them is intact.
        BackupMismatchError: A newer version of this package wrote one of them.
    """
    listing = find(storage, template)
    return first_intact(storage, listing.checkpoints, listing.problems, into=into, foreign=listing.foreign)


def first_intact(
    storage: Storage,
    candidates: Iterable[Checkpoint],
    known_problems: Iterable[Problem] = (),
    *,
    into: Path | None = None,
    foreign: Sequence[ForeignCheckpoint] = (),
) -> Checkpoint | None:
    """Returns the first of several checkpoints whose content matches its record; a warning names damaged ones.

    Args:
        storage: The directory.
        candidates: The checkpoints.
        known_problems: What else is damaged there.
        into: A local directory that gets a copy of the file. Defaults to no copy.
        foreign: Those of other programs; the warning names those that are newer than the one that is used.

    Raises:
        DamagedBackupError: There are some, but none of them is intact.
    """
    problems = list(known_problems)
    for candidate in candidates:
        try:
            found = verify(storage, candidate.name) if into is None else fetch(storage, candidate.name, into)
        except FileNotFoundError:
            continue  # deleted since the listing
        except DamagedBackupError as error:
            problems.append(damaged(storage, candidate.name, error))
            continue
        texts = [str(problem) for problem in problems]
        newer = _written_after(storage, foreign, found.name)
        if newer:
            texts.append(without_record(map(storage.display, newer)))
        if texts:
            warn(f"{'; '.join(texts)}. {storage.display(found.name)} is used", UserWarning)
        return found
    if problems:
        raise DamagedBackupError(
            f"no checkpoint in {storage.display()} is intact: {'; '.join(map(str, problems))}. Restore the files, or "
            "delete them to start from the beginning"
        )
    return None


def _written_after(storage: Storage, foreign: Sequence[ForeignCheckpoint], reference: str) -> list[str]:
    """Returns the names of those that were written after a file."""
    if not foreign:
        return []
    then = storage.modified(reference)
    with ThreadPoolExecutor(_READERS) as pool:
        times = list(pool.map(lambda one: one.written(storage), foreign))
    return [one.name for one, written in zip(foreign, times, strict=True) if written > then]


def without_record(names: Iterable[str]) -> str:
    """Says why files of other programs are not used."""
    shown = ", ".join(first_few(list(names)))
    return (
        f"{shown} without a record: another program wrote or rewrote it, so it is not verified and not used "
        "(make_or_restore_model(..., adopt=True) starts from the newest such file that loads, if there are no others)"
    )


def verify(storage: Storage, name: str) -> Checkpoint:
    """Reads a stored file completely and compares it with its record.

    Raises:
        FileNotFoundError: It does not exist.
        DamagedBackupError: It has no record, or differs from it.
    """

    def read() -> CheckpointRecord:
        size = storage.size(name)
        if size is None:
            raise FileNotFoundError(storage.display(name))
        return read_verified_record(size, lambda start, end: storage.read(name, start, end), storage.display(name))

    return Checkpoint(name, read_verified(storage, name, read))


def fetch(storage: Storage, name: str, into: Path) -> Checkpoint:
    """Copies a stored file to a local directory and compares the copy with its record.

    Raises:
        FileNotFoundError: It does not exist.
        DamagedBackupError: It has no record, or differs from it.
    """
    target = into / name

    def copy() -> CheckpointRecord:
        storage.download(name, target)
        return read_local(target, storage.display(name))

    return Checkpoint(name, read_verified(storage, name, copy))


def publish(storage: Storage, source: Path, record: CheckpointRecord) -> Checkpoint:
    """Writes the record into a local file and publishes the file, replacing what has its name.

    Args:
        storage: The directory.
        source: A local file that Keras has saved; it is changed.
        record: Its record; size and digest are filled in here.

    Raises:
        FencedError: A newer run has published a file of this name.
        StorageError: The store failed, after all retries.
    """
    name = record.published_name
    size = None if storage.link_target(name) else storage.size(name)
    earlier = None if size is None else _examine(storage, FileInfo(name, size))
    if (
        isinstance(earlier, CheckpointRecord)
        and earlier.published_name == name
        and earlier.generation > record.generation
    ):
        raise FencedError(
            f"{storage.display(name)} was published by a newer run (generation {earlier.generation}, this run has "
            f"{record.generation}). Two runs write to one directory: stop one of them"
        )
    with temporary.writing(f"the record of {storage.display(name)}", within=source.parent):
        checkpoint = Checkpoint(name, append_record(source, record))
    storage.replace(name, source)
    arrived = storage.size(name)
    if arrived != checkpoint.file_size:
        raise StorageError(
            f"{storage.display(name)}: {checkpoint.file_size} bytes were written, but the store holds {arrived}"
        )
    return checkpoint


def run_token(listing: Listing, template: str) -> str:
    """Returns the token of the run that wrote the files of this template, or a new one.

    Files of another run may have been copied to the directory: the token that most of the files have is that of the
    directory's own runs.
    """
    originals = [one.record for one in listing.checkpoints if one.is_original and one.record.template == template]
    tokens = Counter(record.run_token for record in originals)  # newest first, so that it wins a tie
    return tokens.most_common(1)[0][0] if tokens else uuid.uuid4().hex[:12]


def own(listing: Listing, template: str, token: str) -> list[Checkpoint]:
    """Returns the files that this run, or one that it continues, wrote and nobody renamed, from old to new."""
    candidates = (one for one in reversed(listing.checkpoints) if one.is_original)
    return [one for one in candidates if (one.record.template, one.record.run_token) == (template, token)]


def remove_unfinished(storage: Storage, template: str) -> None:
    """Deletes what interrupted writes of files with this template left."""
    fits = pattern_of(template)
    for info in storage.files():
        final = final_name(info.name)
        if final is not None and fits.fullmatch(final):
            storage.delete(info.name)


def unfinished(infos: Iterable[FileInfo]) -> dict[str, int]:
    """Returns names and sizes of the files that interrupted writes of checkpoints left."""
    finals = ((info, final_name(info.name)) for info in infos)
    return {info.name: info.size for info, final in finals if final is not None and final.endswith(EXTENSIONS)}


def _examine(storage: Storage, info: FileInfo) -> CheckpointRecord | DamagedBackupError | FileNotFoundError | None:
    """Returns the record of a file; None if it has none, or the error that says why it cannot be read."""
    with contextlib.suppress(DamagedBackupError, FileNotFoundError):
        record = _read_record(storage, info.name, info.size)
        if record is not None:
            return record
    try:  # again: it may have been replaced since it was listed
        size = storage.size(info.name)
        return FileNotFoundError(info.name) if size is None else _read_record(storage, info.name, size)
    except (DamagedBackupError, FileNotFoundError) as error:
        return error


def _read_record(storage: Storage, name: str, size: int) -> CheckpointRecord | None:
    return read_record(size, lambda start, end: storage.read(name, start, end), storage.display(name))

"""`.keras` and `.weights.h5` files in a store, and the sidecar that makes each of them a complete one.

A sidecar `<name>.json` holds digest, size, order and progress of a file and is written last: a file without
one is unfinished or foreign and never taken. Newest means the largest (generation, sequence),
never a time or a name.

A name may be published again (a fixed file path). Between replacing the file and replacing its sidecar a
crash would leave a good file beside a digest that does not fit. So the sidecar first becomes an intent that
lists the new version and the ones before it; whichever version's digest fits the file is the one that is
there, before, during and after the replacement.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import xxhash

from keras_dist_callbacks.backups.checkpoint_directory import CheckpointDirectory
from keras_dist_callbacks.backups.rereading import read_verified
from keras_dist_callbacks.backups.sidecar import (
    SIDECAR,
    Artifact,
    delete_sidecar,
    read_sidecar,
    versions_or_none,
    write_sidecar,
)
from keras_dist_callbacks.errors import DamagedBackupError, FencedError, StorageError
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.texts import warn

EXTENSIONS = (".keras", ".weights.h5")
_SIDECARS = tuple(extension + SIDECAR for extension in EXTENSIONS)
_CHUNK = 16 * 2**20
_READERS = 8

_sequence = itertools.count(1)


def next_sequence() -> int:
    """The next sequence number; one counter for all callbacks of this process, so that they have one order."""
    return next(_sequence)


@dataclass(frozen=True)
class Listing:
    """What a directory holds.

    Attributes:
        artifacts: The published ones, newest first; their content is not verified.
        problems: One sentence for each damaged sidecar or file that was found on the way.
        generation: The largest that any sidecar names, 0 if there is none.
    """

    artifacts: tuple[Artifact, ...] = ()
    problems: tuple[str, ...] = ()
    generation: int = 0


def split_filepath(path: str) -> tuple[str, str]:
    """A path or URL as its directory and its last part."""
    directory, separator, name = path.rpartition("/")
    if not separator:
        return ".", name
    if directory.endswith(":/"):
        return f"{directory}/", name  # `memory://name`
    return directory or "/", name


def publish(directory: CheckpointDirectory, source: Path, artifact: Artifact) -> Artifact:
    """Publishes a local file under `artifact.name`, replacing what was there.

    Args:
        directory: Where it is.
        source: The file; it is left alone.
        artifact: What it is; digest and size are filled in here.

    Returns:
        The artefact as published.

    Raises:
        FencedError: A newer run has published this name.
        StorageError: The store failed, after all retries.
    """
    artifact = dataclasses.replace(artifact, digest=digest_file(source), size=source.stat().st_size)
    earlier = versions_or_none(directory, artifact.name)
    if earlier and earlier[0].generation > artifact.generation:
        raise FencedError(
            f"{directory.display(artifact.name)} was published by a newer run (generation {earlier[0].generation}, "
            f"this one is {artifact.generation}); two runs write into one directory: end one of them"
        )
    if earlier:
        write_sidecar(directory, [artifact, *earlier])
    directory.files.replace(artifact.name, source, directory.way)
    arrived = directory.files.size(artifact.name)
    if arrived != artifact.size:
        raise StorageError(
            f"{directory.display(artifact.name)}: {artifact.size} bytes were written, but the store holds {arrived}"
        )
    write_sidecar(directory, [artifact])
    return artifact


def find(directory: CheckpointDirectory, series: str | None = None) -> Listing:
    """Lists what was published completely.

    A file that is gone while its sidecar is still beside the directory is a problem only if nothing newer is there:
    somebody deletes old files, or all of them to begin anew, and cannot see the sidecars.

    Args:
        directory: Where it is; it need not exist.
        series: Only artefacts made from this template, or of this name.

    Raises:
        BackupMismatchError: A sidecar has a format version that this package does not know.
    """
    places, present = _listed(directory)
    found: list[Artifact] = []
    gone: list[Artifact] = []
    problems: list[str] = []
    generation = 0
    for name, outcome in _read_all(directory, places):
        if isinstance(outcome, str):
            problems += [outcome] if name in present or directory.files in places[name] else []
            continue
        generation = max([generation, *(version.generation for version in outcome)])
        versions = [a for a in outcome if series is None or series in (a.series, a.name)]
        if not versions:
            continue
        if name not in present:
            gone.append(versions[0])
            continue
        current = versions[0] if len(versions) == 1 else _current_of(directory, name, versions)
        if current is None:
            problems.append(f"{directory.display(name)} holds none of the versions that its sidecar lists")
        else:
            found.append(current)
    newest = max((artifact.order for artifact in found), default=None)
    for lost in gone:
        if directory.files in places[lost.name] or (newest is not None and lost.order > newest):
            problems.append(f"{directory.display(lost.name)} is missing, although its sidecar is there")
    return Listing(tuple(sorted(found, key=lambda a: a.order, reverse=True)), tuple(problems), generation)


def newest_verified(
    directory: CheckpointDirectory, series: str | None = None, *, into: Path | None = None
) -> Artifact | None:
    """The newest artefact whose content is what its sidecar says; damaged ones are reported and passed over.

    Args:
        directory: Where it is; it need not exist.
        series: Only artefacts made from this template, or of this name.
        into: A local directory that gets a copy of the file. Defaults to no copy.

    Returns:
        The artefact, or None if nothing was ever published there.

    Raises:
        DamagedBackupError: Artefacts were published, but none of them is whole.
        BackupMismatchError: A sidecar has a format version that this package does not know.
    """
    listing = find(directory, series)
    problems = list(listing.problems)
    for candidate in listing.artifacts:
        try:
            artifact = verify(directory, candidate) if into is None else fetch(directory, candidate, into)
        except DamagedBackupError as error:
            problems.append(str(error))
            continue
        if problems:
            taken = directory.display(artifact.name)
            warn(f"damaged checkpoints were passed over, {taken} is taken: {'; '.join(problems)}", UserWarning)
        return artifact
    if problems:
        raise DamagedBackupError(
            f"no checkpoint in {directory.display()} is whole: {'; '.join(problems)}. Restore the files, or delete "
            f"them, and their sidecars in {' and '.join(p.display() for p in directory.places)}, to begin anew"
        )
    return None


def verify(directory: CheckpointDirectory, artifact: Artifact) -> Artifact:
    """Reads the stored file and compares it with its sidecar.

    Returns:
        `artifact`, or the version that replaced it meanwhile.

    Raises:
        DamagedBackupError: The file is missing, or differs from what its sidecar says.
    """
    return _verified(directory, artifact, lambda: _digest_object(directory, artifact.name))


def fetch(directory: CheckpointDirectory, artifact: Artifact, into: Path) -> Artifact:
    """Copies the stored file to a local directory and compares the copy with the sidecar.

    Returns:
        `artifact`, or the version that replaced it meanwhile.

    Raises:
        DamagedBackupError: The file is missing, or differs from what its sidecar says.
    """
    target = into / artifact.name

    def copy() -> tuple[int, str]:
        directory.files.download(artifact.name, target)
        return target.stat().st_size, digest_file(target)

    return _verified(directory, artifact, copy)


def _verified(directory: CheckpointDirectory, artifact: Artifact, read: Callable[[], tuple[int, str]]) -> Artifact:
    try:
        return read_verified(directory.files, artifact.name, lambda: _match(directory, artifact, *read()))
    except FileNotFoundError as error:
        raise DamagedBackupError(f"{directory.display(artifact.name)} is missing") from error


def delete(directory: CheckpointDirectory, name: str, generation: int) -> None:
    """Deletes the file and its sidecar, unless a run newer than `generation` has published the name."""
    versions = versions_or_none(directory, name)
    if versions and versions[0].generation > generation:
        return
    delete_sidecar(directory, name)  # first: a file without a sidecar is never taken
    directory.files.delete(name)


def keep_newest(directory: CheckpointDirectory, names: Sequence[str], keep: int, generation: int) -> list[str]:
    """Deletes all but the last `keep` of `names`, which are ordered from old to new; returns what is left."""
    cut = max(0, len(names) - keep)
    for name in names[:cut]:
        delete(directory, name, generation)
    return list(names[cut:])


def _match(directory: CheckpointDirectory, artifact: Artifact, size: int, digest: str) -> Artifact:
    if (size, digest) == (artifact.size, artifact.digest):
        return artifact
    for version in versions_or_none(directory, artifact.name) or []:
        if (size, digest) == (version.size, version.digest):
            return version
    name = directory.display(artifact.name)
    if size != artifact.size:
        raise DamagedBackupError(f"{name} has {size} bytes, its sidecar says {artifact.size}")
    raise DamagedBackupError(f"{name}: its content differs from the digest in its sidecar")


def _current_of(directory: CheckpointDirectory, name: str, versions: Iterable[Artifact]) -> Artifact | None:
    listed = {(version.size, version.digest): version for version in reversed(list(versions))}

    def read() -> Artifact:
        found = listed.get(_digest_object(directory, name))
        if found is None:
            raise DamagedBackupError(f"{directory.display(name)} holds none of the versions that its sidecar lists")
        return found

    try:
        return read_verified(directory.files, name, read)
    except (FileNotFoundError, DamagedBackupError):
        return None


def _listed(directory: CheckpointDirectory) -> tuple[dict[str, list[Storage]], set[str]]:
    """The names that have a sidecar, with the places where it is, and the names of all files in the directory.

    The files are listed behind the sidecars: of one that is deleted meanwhile the sidecar is gone before. A sidecar
    that lay among the files may have moved meanwhile.
    """
    aside = directory.names_aside()
    inside = directory.names()
    noted = aside | inside
    if any(name.endswith(EXTENSIONS) and name + SIDECAR not in noted for name in inside):
        aside |= directory.names_aside()
    places: dict[str, list[Storage]] = {}
    for place in directory.places:
        for name in sorted(inside if place is directory.files else aside):
            if name.endswith(_SIDECARS):
                places.setdefault(name.removesuffix(SIDECAR), []).append(place)
    return places, inside


def _read_all(
    directory: CheckpointDirectory, places: Mapping[str, Sequence[Storage]]
) -> Iterator[tuple[str, list[Artifact] | str]]:
    def read(name: str) -> list[Artifact] | str:
        try:
            try:
                return read_sidecar(directory, name, places[name])
            except FileNotFoundError:
                return read_sidecar(directory, name)  # it has moved since the listing
        except FileNotFoundError:
            return []  # or was deleted
        except DamagedBackupError as error:
            return str(error)

    with ThreadPoolExecutor(_READERS) as pool:
        yield from zip(places, pool.map(read, places), strict=True)


def digest_file(path: Path) -> str:
    """xxh3_128 of a local file's content, in hex."""
    hasher = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()


def _digest_object(directory: CheckpointDirectory, name: str) -> tuple[int, str]:
    size = directory.files.size(name)
    if size is None:
        raise FileNotFoundError(name)
    hasher = xxhash.xxh3_128()
    for start in range(0, size, _CHUNK):
        hasher.update(directory.files.read(name, start, min(size, start + _CHUNK)))
    return size, hasher.hexdigest()

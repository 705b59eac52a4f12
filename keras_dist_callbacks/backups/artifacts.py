"""`.keras` and `.weights.h5` files in a store, and the sidecar that makes each of them a complete one.

A sidecar `<name>.json` holds digest, size, order and progress of the file beside it and is written last: a
file without one is unfinished or foreign and never taken. Newest means the largest (generation, sequence),
never a time or a name.

A name may be published again (a fixed file path). Between replacing the file and replacing its sidecar a
crash would leave a good file beside a digest that does not fit. So the sidecar first becomes an intent that
lists the new version and the ones before it; whichever version's digest fits the file is the one that is
there, before, during and after the replacement.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import xxhash

from keras_dist_callbacks.backups.sidecar import (
    SIDECAR,
    Artifact,
    read_sidecar,
    versions_or_none,
    write_sidecar,
)
from keras_dist_callbacks.errors import DamagedBackupError, FencedError, StorageError
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.texts import warn

EXTENSIONS = (".keras", ".weights.h5")
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
    """

    artifacts: tuple[Artifact, ...] = ()
    problems: tuple[str, ...] = ()


def split_filepath(path: str) -> tuple[str, str]:
    """A path or URL as its directory and its last part."""
    directory, separator, name = path.rpartition("/")
    if not separator:
        return ".", name
    if directory.endswith(":/"):
        return f"{directory}/", name  # `memory://name`
    return directory or "/", name


def publish(storage: Storage, source: Path, artifact: Artifact) -> Artifact:
    """Publishes a local file under `artifact.name`, replacing what was there.

    Args:
        storage: The directory.
        source: The file; it is left alone.
        artifact: What it is; digest and size are filled in here.

    Returns:
        The artefact as published.

    Raises:
        FencedError: A newer run has published this name.
        StorageError: The store failed, after all retries.
    """
    artifact = dataclasses.replace(artifact, digest=digest_file(source), size=source.stat().st_size)
    earlier = versions_or_none(storage, artifact.name)
    if earlier and earlier[0].generation > artifact.generation:
        raise FencedError(
            f"{storage.display(artifact.name)} was published by a newer run (generation {earlier[0].generation}, this "
            f"one is {artifact.generation}); two runs write into one directory: end one of them"
        )
    if earlier:
        write_sidecar(storage, [artifact, *earlier])
    storage.replace(artifact.name, source)
    arrived = storage.size(artifact.name)
    if arrived != artifact.size:
        raise StorageError(
            f"{storage.display(artifact.name)}: {artifact.size} bytes were written, but the store holds {arrived}"
        )
    write_sidecar(storage, [artifact])
    return artifact


def find(storage: Storage, series: str | None = None) -> Listing:
    """Lists what was published completely.

    Args:
        storage: The directory; it need not exist.
        series: Only artefacts made from this template, or of this name.

    Raises:
        BackupMismatchError: A sidecar has a format version that this package does not know.
    """
    present = {info.name for info in storage.files()}
    names = [n[: -len(SIDECAR)] for n in present if n.endswith(tuple(e + SIDECAR for e in EXTENSIONS))]
    found: list[Artifact] = []
    problems: list[str] = []
    for name, outcome in _read_all(storage, sorted(names)):
        if isinstance(outcome, str):
            problems.append(outcome)
            continue
        versions = [a for a in outcome if series is None or series in (a.series, a.name)]
        if not versions:
            continue
        if name not in present:
            problems.append(f"{storage.display(name)} is missing, although its sidecar is there")
            continue
        current = versions[0] if len(versions) == 1 else _current_of(storage, name, versions)
        if current is None:
            problems.append(f"{storage.display(name)} holds none of the versions that its sidecar lists")
        else:
            found.append(current)
    return Listing(tuple(sorted(found, key=lambda a: a.order, reverse=True)), tuple(problems))


def newest_verified(storage: Storage, series: str | None = None, *, into: Path | None = None) -> Artifact | None:
    """The newest artefact whose content is what its sidecar says; damaged ones are reported and passed over.

    Args:
        storage: The directory; it need not exist.
        series: Only artefacts made from this template, or of this name.
        into: A local directory that gets a copy of the file. Defaults to no copy.

    Returns:
        The artefact, or None if nothing was ever published there.

    Raises:
        DamagedBackupError: Artefacts were published, but none of them is whole.
        BackupMismatchError: A sidecar has a format version that this package does not know.
    """
    listing = find(storage, series)
    problems = list(listing.problems)
    for candidate in listing.artifacts:
        try:
            artifact = verify(storage, candidate) if into is None else fetch(storage, candidate, into)
        except DamagedBackupError as error:
            problems.append(str(error))
            continue
        if problems:
            taken = storage.display(artifact.name)
            warn(f"damaged checkpoints were passed over, {taken} is taken: {'; '.join(problems)}", UserWarning)
        return artifact
    if problems:
        raise DamagedBackupError(
            f"no checkpoint in {storage.display()} is whole: {'; '.join(problems)}. Restore the files, or delete them "
            f"with their {SIDECAR} sidecars to begin anew"
        )
    return None


def verify(storage: Storage, artifact: Artifact) -> Artifact:
    """Reads the stored file and compares it with its sidecar.

    Returns:
        `artifact`, or the version that replaced it meanwhile.

    Raises:
        DamagedBackupError: The file is missing, or differs from what its sidecar says.
    """
    try:
        size, digest = _digest_object(storage, artifact.name)
    except FileNotFoundError as error:
        raise DamagedBackupError(f"{storage.display(artifact.name)} is missing") from error
    return _match(storage, artifact, size, digest)


def fetch(storage: Storage, artifact: Artifact, directory: Path) -> Artifact:
    """Copies the stored file to a local directory and compares the copy with the sidecar.

    Returns:
        `artifact`, or the version that replaced it meanwhile.

    Raises:
        DamagedBackupError: The file is missing, or differs from what its sidecar says.
    """
    target = directory / artifact.name
    try:
        storage.download(artifact.name, target)
    except FileNotFoundError as error:
        raise DamagedBackupError(f"{storage.display(artifact.name)} is missing") from error
    return _match(storage, artifact, target.stat().st_size, digest_file(target))


def delete(storage: Storage, name: str, generation: int) -> None:
    """Deletes the file and its sidecar, unless a run newer than `generation` has published the name."""
    versions = versions_or_none(storage, name)
    if versions and versions[0].generation > generation:
        return
    storage.delete(name + SIDECAR)  # first: a file without a sidecar is never taken
    storage.delete(name)


def keep_newest(storage: Storage, names: Sequence[str], keep: int, generation: int) -> list[str]:
    """Deletes all but the last `keep` of `names`, which are ordered from old to new; returns what is left."""
    cut = max(0, len(names) - keep)
    for name in names[:cut]:
        delete(storage, name, generation)
    return list(names[cut:])


def without_sidecar(storage: Storage) -> list[str]:
    """Names of model files that another tool, or an interrupted save, left without a sidecar."""
    present = {info.name for info in storage.files()}
    return sorted(n for n in present if n.endswith(EXTENSIONS) and n + SIDECAR not in present)


def _match(storage: Storage, artifact: Artifact, size: int, digest: str) -> Artifact:
    if (size, digest) == (artifact.size, artifact.digest):
        return artifact
    for version in versions_or_none(storage, artifact.name) or []:
        if (size, digest) == (version.size, version.digest):
            return version
    name = storage.display(artifact.name)
    if size != artifact.size:
        raise DamagedBackupError(f"{name} has {size} bytes, its sidecar says {artifact.size}")
    raise DamagedBackupError(f"{name}: its content differs from the digest in its sidecar")


def _current_of(storage: Storage, name: str, versions: Iterable[Artifact]) -> Artifact | None:
    try:
        content = _digest_object(storage, name)
    except FileNotFoundError:
        return None
    return next((v for v in versions if (v.size, v.digest) == content), None)


def _read_all(storage: Storage, names: Sequence[str]) -> Iterator[tuple[str, list[Artifact] | str]]:
    def read(name: str) -> list[Artifact] | str:
        try:
            return read_sidecar(storage, name)
        except FileNotFoundError:
            return []  # deleted since the listing
        except DamagedBackupError as error:
            return str(error)

    with ThreadPoolExecutor(_READERS) as pool:
        yield from zip(names, pool.map(read, names), strict=True)


def digest_file(path: Path) -> str:
    """xxh3_128 of a local file's content, in hex."""
    hasher = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()


def _digest_object(storage: Storage, name: str) -> tuple[int, str]:
    size = storage.size(name)
    if size is None:
        raise FileNotFoundError(name)
    hasher = xxhash.xxh3_128()
    for start in range(0, size, _CHUNK):
        hasher.update(storage.read(name, start, min(size, start + _CHUNK)))
    return size, hasher.hexdigest()

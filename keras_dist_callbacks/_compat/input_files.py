"""The files that a tf.data pipeline reads: their names, sizes and times, and what is in some of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import xxhash

_SAMPLED = 64  # files
_SECONDS = 2.0
_WHOLE = 2**20  # bytes: of larger files, blocks evenly spread
_BLOCKS, _BLOCK = 16, 4096


def texts_of(value: Any) -> list[str] | None:
    """The texts of a tensor or an array that holds nothing else; None of any other."""
    import tensorflow as tf

    if isinstance(value, tf.Tensor):
        if value.dtype != tf.string or not hasattr(value, "numpy"):
            return None
        value = np.asarray(value.numpy())
    if isinstance(value, str | bytes):
        value = np.asarray(value, object)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "OUS":
        return None
    items = value.reshape(-1).tolist()
    if not all(isinstance(item, str | bytes) for item in items):
        return None
    return [item.decode(errors="surrogateescape") if isinstance(item, bytes) else item for item in items]


def are_files(texts: Sequence[str]) -> bool:
    """Whether texts are the names of files, as the first one tells."""
    import tensorflow as tf

    if not texts or "/" not in texts[0] or len(texts[0]) > _BLOCK or "\n" in texts[0]:
        return False
    try:
        return bool(tf.io.gfile.exists(texts[0])) and not tf.io.gfile.isdir(texts[0])
    except (tf.errors.OpError, ValueError):
        return False


def file_facts(where: str, paths: Sequence[str]) -> dict[str, Any]:
    """What tells files apart: the names without their directories, sizes, times, and what is in some of them.

    Args:
        where: How the names of the facts begin.
        paths: The files, as the pipeline was given them.

    Returns:
        `names`, `sizes` and `times`: digests of all files; the latter two are None where two seconds are not enough.
        `samples`: of at most 64 files, evenly spread, what can be read within two seconds: size, time of the last
        change in nanoseconds, digest, and whether it is that of the whole content.
    """
    every = np.linspace(0, len(paths) - 1, min(_SAMPLED, len(paths))).astype(int)
    stats = list(_within(_SECONDS, map(_stat, paths)))
    is_complete = len(stats) == len(paths)
    return {
        f"{where}/names": f"{len(paths)} files, {_hash(map(_base, paths))}",
        f"{where}/sizes": _hash(str(size) for size, _ in stats) if is_complete else None,
        f"{where}/times": _hash(str(time) for _, time in stats) if is_complete else None,
        f"{where}/samples": list(_within(_SECONDS, (_sample(paths[index]) for index in every))),
    }


def _within(seconds: float, items: Iterable[Any]) -> Iterator[Any]:
    """The items that are there in time."""
    end = time.monotonic() + seconds
    for item in items:
        yield item
        if time.monotonic() > end:
            return


def _hash(texts: Iterable[str]) -> str:
    return xxhash.xxh3_64_hexdigest("\n".join(texts).encode(errors="surrogatepass"))


def _stat(path: str) -> tuple[int, int]:
    import tensorflow as tf

    try:
        found = tf.io.gfile.stat(path)
        return int(found.length), int(found.mtime_nsec)
    except tf.errors.OpError:
        return -1, 0


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _sample(path: str) -> list[Any]:
    import tensorflow as tf

    size, changed = _stat(path)
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return [size, changed, _digest(file, size), size <= _WHOLE]
    except tf.errors.OpError:
        return [-1, 0, "", False]


def _digest(file: Any, size: int) -> str:
    digest = xxhash.xxh3_64()
    offsets: Iterable[int] = [0] if size <= _WHOLE else np.linspace(0, size - _BLOCK, _BLOCKS).astype(int)
    for offset in offsets:
        file.seek(int(offset))
        digest.update(file.read(_WHOLE if size <= _WHOLE else _BLOCK))
    return digest.hexdigest()


def changed_files(before: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]]) -> int:
    """How many of the files that two runs sampled have another size or content."""
    return sum((a[0], a[2]) != (b[0], b[2]) for a, b in zip(before, now, strict=False))


def were_compared(before: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]], count: int) -> bool:
    """Whether two runs have read all of so many files whole."""
    return len(before) == len(now) == count and all(sample[3] for sample in now)

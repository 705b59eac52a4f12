"""The files that a tf.data pipeline reads: their names, sizes and times, and what is in some of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
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
    """What tells files apart: the names without their directories, and for some of them more.

    Args:
        where: How the names of the facts begin.
        paths: The files, as the pipeline was given them.

    Returns:
        `names`: a digest of all; `samples`: of at most 64 files, evenly spread, what is read within two seconds: size,
        time of the last change in nanoseconds, digest, and whether it is that of the whole content.
    """
    names = xxhash.xxh3_64_hexdigest("\n".join(map(_base, paths)).encode(errors="surrogatepass"))
    every = np.linspace(0, len(paths) - 1, min(_SAMPLED, len(paths))).astype(int)
    end = time.monotonic() + _SECONDS
    samples = []
    for path in (paths[index] for index in every):
        if time.monotonic() > end:
            break
        samples.append(_sample(path))
    return {f"{where}/names": f"{len(paths)} files, {names}", f"{where}/samples": samples}


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _sample(path: str) -> list[Any]:
    import tensorflow as tf

    try:
        found = tf.io.gfile.stat(path)
        with tf.io.gfile.GFile(path, "rb") as file:
            return [int(found.length), int(found.mtime_nsec), _digest(file, found.length), found.length <= _WHOLE]
    except (tf.errors.OpError, OSError):
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


def may_have_changed(before: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]], count: int) -> bool:
    """Whether files have other times than before, and not all of them were read whole."""
    pairs = list(zip(before, now, strict=False))
    has_other_times = any(a[1] != b[1] for a, b in pairs)
    return has_other_times and not (len(pairs) == count and all(b[3] for _, b in pairs))

"""Digests of what an input reads: of arrays (numbers and texts, dense, sparse, ragged), of their rows, and of files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import xxhash

from keras_dist_callbacks.base import static

LARGEST = 2**32  # bytes that are read completely, within half a second; of more, rows evenly spread
_ROWS_READ = 64
_LARGEST_TEXTS = 2**22
_VALUES_OF_A_ROW = 1024
_FILES_READ = 64
_SECONDS = 2.0
_LARGEST_FILE = 2**20  # bytes that are read completely; of larger ones, blocks evenly spread
_BLOCKS, _BLOCK = 16, 4096


def digest_of(arrays: Iterable[Any]) -> tuple[str, str]:
    """Returns a digest of what arrays hold, and what of them it does not cover; empty if nothing."""
    digest = xxhash.xxh3_64()
    unread = [_add(part, digest) for array in arrays for part in _parts(array)]
    return digest.hexdigest(), "; ".join(filter(None, dict.fromkeys(unread)))


def rows_of(arrays: Iterable[Any], count: int | None = None) -> list[str]:
    """Returns a digest of each row, of the first `count` or of all; none where rows cannot be told apart.

    Args:
        arrays: Dense ones with as many rows each; one row is what all of them have at one place.
        count: How many rows.
    """
    import tensorflow as tf

    columns: list[list[bytes]] = []
    for array in arrays:
        is_dense = isinstance(array, np.ndarray | tf.Tensor) and len(array.shape) > 0
        held = _read(array[:count]) if is_dense else None
        if held is None or (isinstance(held, list) and len(array.shape) > 1):
            return []
        rows = map(_bytes_of_row, held) if isinstance(held, np.ndarray) else (repr(text).encode() for text in held)
        columns.append([xxhash.xxh3_64_digest(row) for row in rows])
    if len({len(column) for column in columns}) != 1:
        return []
    return [xxhash.xxh3_64_hexdigest(b"".join(row)) for row in zip(*columns, strict=True)]


def _bytes_of_row(row: np.ndarray[Any, Any]) -> bytes:
    """Of a row what is evenly spread in it; equal numbers have equal bytes, whatever their type."""
    values = np.ravel(row)
    values = values[:: max(1, len(values) // _VALUES_OF_A_ROW)]
    return (values.astype(np.float64) if values.dtype.kind in "biuf" else values).tobytes()


def _parts(array: Any) -> list[Any]:
    """Returns the dense arrays that a sparse or ragged one consists of."""
    import tensorflow as tf

    if static.has(array, "tocsr"):
        rows = array.tocsr()
        return [rows.data, rows.indices, rows.indptr]
    parts: list[Any] = tf.nest.flatten(array, expand_composites=True)
    return parts


def _add(array: Any, digest: xxhash.xxh3_64) -> str:
    """Adds what an array holds to a digest; returns what of it was left out."""
    held = _read(array)
    if held is None:
        return f"a {type(array).__name__} was not compared"
    if isinstance(held, list):
        digest.update(f"{len(held)} {held[:_LARGEST_TEXTS]}".encode())
        return "" if len(held) <= _LARGEST_TEXTS else f"only the first {_LARGEST_TEXTS} texts were compared"
    digest.update(f"{held.dtype} {held.shape}".encode())
    is_partial = held.nbytes > LARGEST and len(held) > _ROWS_READ
    rows = held[np.linspace(0, len(held) - 1, _ROWS_READ).astype(np.int64)] if is_partial else held
    digest.update(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
    return f"only {_ROWS_READ} of its {len(held)} rows were compared" if is_partial else ""


def _read(array: Any) -> np.ndarray[Any, Any] | list[str] | None:
    """Returns the numbers or the texts of a dense array; None if it cannot be read here, or holds other objects."""
    import tensorflow as tf

    is_tensor = isinstance(array, tf.Tensor)
    if is_tensor and not (hasattr(array, "numpy") and array.dtype.is_numpy_compatible):
        return None  # of a graph, or a handle
    try:
        held = array.numpy() if is_tensor else array
        held = np.asarray(held, object if isinstance(held, str | bytes) else None)
    except (TypeError, ValueError, RuntimeError):  # of another library, or on a device
        return None
    if held.dtype.kind not in "OUS":
        return held
    items = held.reshape(-1).tolist()
    if not all(isinstance(item, str | bytes) for item in items):
        return None
    return [item.decode(errors="surrogateescape") if isinstance(item, bytes) else item for item in items]


def texts_of(array: Any) -> list[str]:
    """Returns the texts of a dense array; empty if it holds anything else."""
    held = _read(array)
    return held if isinstance(held, list) else []


def are_files(texts: Sequence[str]) -> bool:
    """Returns whether texts are the names of files, judged by the first one."""
    import tensorflow as tf

    if not texts or "/" not in texts[0] or len(texts[0]) > _BLOCK or "\n" in texts[0]:
        return False
    try:
        return bool(tf.io.gfile.exists(texts[0])) and not tf.io.gfile.isdir(texts[0])
    except (tf.errors.OpError, ValueError):
        return False


def file_facts(paths: Sequence[str]) -> dict[str, Any]:
    """Returns what identifies files.

    Args:
        paths: The files, as the pipeline was given them.

    Returns:
        `count`; digests of all `sizes` and `times`, None where two seconds are not enough; `samples`: of at most 64
        files, evenly spread, what can be read within two seconds: a digest, and whether it is of the entire content.
    """
    chosen = np.linspace(0, len(paths) - 1, min(_FILES_READ, len(paths))).astype(int)
    stats = list(_in_time(map(_stat, paths)))
    sizes, times = zip(*stats, strict=True) if len(stats) == len(paths) else (None, None)
    return {
        "count": len(paths),
        "sizes": sizes and _hash(map(str, sizes)),
        "times": times and _hash(map(str, times)),
        "samples": list(_in_time(_sample(paths[index]) for index in chosen)),
    }


def names_of(paths: Iterable[str]) -> str:
    """Returns a digest of the names of files, without their directories."""
    return _hash(path.rstrip("/").rpartition("/")[2] for path in paths)


def _in_time(items: Iterable[Any]) -> Iterator[Any]:
    """The items that are there within two seconds, and at least one."""
    end = time.monotonic() + _SECONDS
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


def _sample(path: str) -> tuple[str, bool]:
    """Returns a digest of a file's size and content, and whether that is the entire content."""
    import tensorflow as tf

    size, _ = _stat(path)
    is_whole = size <= _LARGEST_FILE
    offsets = [0] if is_whole else np.linspace(0, size - _BLOCK, _BLOCKS).astype(int).tolist()
    digest = xxhash.xxh3_64(str(size).encode())
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            for offset in offsets:
                file.seek(offset)
                digest.update(file.read(_LARGEST_FILE if is_whole else _BLOCK))
    except tf.errors.OpError:
        return "not read", False
    return digest.hexdigest(), is_whole

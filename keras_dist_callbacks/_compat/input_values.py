"""What the input holds: digests of its arrays (numbers and texts, dense, sparse, ragged) and of the files it reads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import xxhash
from keras import tree

from keras_dist_callbacks import static

LARGEST = 2**32  # bytes that are read completely, within half a second; of more, rows evenly spread
_ROWS_READ = 64
_LARGEST_TEXTS = 2**22
_FILES_READ = 64
_FILES_SECONDS = 2.0
_LARGEST_FILE = 2**20  # bytes that are read completely; of larger ones, blocks evenly spread
_BLOCKS, _BLOCK = 16, 4096
VALUES = "values"
"""The last part of the name of a fact that only identifies the values of arrays."""
FILES_OF_PASSES = "files of passes"
"""The last part of the name of a fact that says whether files that keep a pass are complete."""
UNREAD = "unread"
"""The last part of the name of a fact that says what of them was not read."""
FIRST_ROWS = "first rows"
"""The last part of the name of a fact with hashes of the first rows: another number of rows leaves them as they are."""
COMPARED_ROWS = 32
_VALUES_OF_A_ROW = 1024


def facts_of(where: str, arrays: Iterable[Any]) -> dict[str, str]:
    """Returns a hash of what arrays hold, and what of them it does not cover."""
    digest, unread = digest_of(arrays)
    return {f"{where}/{VALUES}": digest, **({f"{where}/{UNREAD}": "; ".join(unread)} if unread else {})}


def digest_of(arrays: Iterable[Any]) -> tuple[str, list[str]]:
    """Returns the hash, and a clause for each kind of what was not read."""
    digest = xxhash.xxh3_64()
    unread = [_add(part, digest) for array in arrays if array is not None for part in _parts(array)]
    return digest.hexdigest(), list(dict.fromkeys(filter(None, unread)))


def rows_of(arrays: Iterable[Any], count: int | None = None) -> list[str]:
    """Returns a hash of each row, of the first `count` or of all; none where rows cannot be told apart.

    Args:
        arrays: Dense ones with as many rows each; one row is what all of them have at one place.
        count: How many rows.
    """
    import tensorflow as tf

    columns: list[list[bytes]] = []
    for array in arrays:
        if not isinstance(array, np.ndarray | tf.Tensor) or not len(array.shape):
            return []
        texts = texts_of(array[:count]) if len(array.shape) == 1 else None
        numbers = None if texts is not None else _numbers(array[:count])
        if texts is None and numbers is None:
            return []
        of_texts = (text.encode(errors="surrogatepass") for text in texts or ())
        rows = of_texts if numbers is None else _bytes_of_rows(numbers)
        columns.append([xxhash.xxh3_64_digest(row) for row in rows])
    if len({len(column) for column in columns}) != 1:
        return []
    return [xxhash.xxh3_64_hexdigest(b"".join(row)) for row in zip(*columns, strict=True)]


def _bytes_of_rows(numbers: np.ndarray[Any, Any]) -> Iterator[bytes]:
    """Of each row what is evenly spread in it; equal numbers have equal bytes, whatever their type."""
    rows = numbers.reshape(len(numbers), int(np.prod(numbers.shape[1:])))
    rows = rows[:, :: max(1, rows.shape[1] // _VALUES_OF_A_ROW)]
    for row in rows:
        yield (row.astype(np.float64) if row.dtype.kind in "biuf" else row).tobytes()


def tensors_of(stage: Any) -> list[Any]:
    """Returns the tensors of a `from_tensors` or `from_tensor_slices`, ragged and sparse ones as the user gave them."""
    import tensorflow as tf
    from tensorflow.python.data.util import structure

    single = [tensor for tensor in (getattr(stage, "_tensor", None),) if tensor is not None]
    tensors = [*getattr(stage, "_tensors", ()), *single]
    if not any(tensor.dtype == tf.variant for tensor in tensors):
        return tensors
    spec = stage.element_spec
    if "Slice" in type(stage).__name__:
        rows = tensors[0].shape[0]
        spec = tf.nest.map_structure(lambda one: one._batch(rows), spec, expand_composites=False)
    return list(tf.nest.flatten(structure.from_tensor_list(spec, tensors)))


def _parts(array: Any) -> Iterator[Any]:
    """The dense arrays that a sparse or ragged one consists of."""
    import tensorflow as tf

    if isinstance(array, tf.RaggedTensor):
        yield from [array.flat_values, *array.nested_row_splits]
    elif isinstance(array, tf.SparseTensor):
        yield from [array.indices, array.values, array.dense_shape]
    elif static.has(array, "tocsr"):
        rows = array.tocsr()
        yield from [rows.data, rows.indices, rows.indptr]
    else:
        yield array


def _add(array: Any, digest: xxhash.xxh3_64) -> str | None:
    texts = texts_of(array)
    if texts is not None:
        digest.update(f"{len(texts)} {[len(text) for text in texts[:_LARGEST_TEXTS]]}".encode())
        digest.update("".join(texts[:_LARGEST_TEXTS]).encode(errors="surrogatepass"))
        return None if len(texts) <= _LARGEST_TEXTS else f"only the first {_LARGEST_TEXTS} texts were compared"
    found = _numbers(array)
    if found is None:
        return f"a {type(array).__name__} was not compared"
    digest.update(f"{found.dtype} {found.shape}".encode())
    rows = None
    if found.nbytes > LARGEST and found.shape[0] > _ROWS_READ:
        rows = np.linspace(0, found.shape[0] - 1, _ROWS_READ).astype(np.int64)
    digest.update(np.ascontiguousarray(found if rows is None else found[rows]).reshape(-1).view(np.uint8).data)
    return None if rows is None else f"only {_ROWS_READ} of its {len(found)} rows were compared"


def texts_of(value: Any) -> list[str] | None:
    """Returns the texts of a tensor or an array that holds nothing else; None of any other."""
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


def _numbers(array: Any) -> np.ndarray[Any, Any] | None:
    import tensorflow as tf

    if isinstance(array, tf.Tensor) and (not hasattr(array, "numpy") or not array.dtype.is_numpy_compatible):
        return None
    try:
        found = np.asarray(array)
    except (TypeError, ValueError, RuntimeError):  # of another library, or on a device
        return None
    return None if found.dtype.hasobject else found


def flatten(*sources: Any) -> list[Any]:
    """Returns the arrays in what `fit()` was given, without those that are None."""
    return [array for array in tree.flatten(sources) if array is not None]


def are_files(texts: Sequence[str]) -> bool:
    """Returns whether texts are the names of files, judged by the first one."""
    import tensorflow as tf

    if not texts or "/" not in texts[0] or len(texts[0]) > _BLOCK or "\n" in texts[0]:
        return False
    try:
        return bool(tf.io.gfile.exists(texts[0])) and not tf.io.gfile.isdir(texts[0])
    except (tf.errors.OpError, ValueError):
        return False


def file_facts(where: str, paths: Sequence[str]) -> dict[str, Any]:
    """Returns what identifies files: the names without their directories, sizes, times, and what is in some of them.

    Args:
        where: How the names of the facts begin.
        paths: The files, as the pipeline was given them.

    Returns:
        `names`, `sizes` and `times`: digests of all files; the latter two are None where two seconds are not enough.
        `samples`: of at most 64 files, evenly spread, what can be read within two seconds: size, time of the last
        change in nanoseconds, digest, and whether it is that of the entire content.
    """
    every = np.linspace(0, len(paths) - 1, min(_FILES_READ, len(paths))).astype(int)
    stats = list(_within(_FILES_SECONDS, map(_stat, paths)))
    is_complete = len(stats) == len(paths)
    return {
        f"{where}/names": f"{len(paths)} files, {_hash(map(_base, paths))}",
        f"{where}/sizes": _hash(str(size) for size, _ in stats) if is_complete else None,
        f"{where}/times": _hash(str(time) for _, time in stats) if is_complete else None,
        f"{where}/samples": list(_within(_FILES_SECONDS, (_sample(paths[index]) for index in every))),
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
            return [size, changed, _digest_of_file(file, size), size <= _LARGEST_FILE]
    except tf.errors.OpError:
        return [-1, 0, "", False]


def _digest_of_file(file: Any, size: int) -> str:
    digest = xxhash.xxh3_64()
    offsets: Iterable[int] = [0] if size <= _LARGEST_FILE else np.linspace(0, size - _BLOCK, _BLOCKS).astype(int)
    for offset in offsets:
        file.seek(int(offset))
        digest.update(file.read(_LARGEST_FILE if size <= _LARGEST_FILE else _BLOCK))
    return digest.hexdigest()


def changed_files(before: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]]) -> int:
    """Returns how many of the files that two runs sampled have another size or content."""
    return sum((a[0], a[2]) != (b[0], b[2]) for a, b in zip(before, now, strict=False))


def were_files_compared(before: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]], count: int) -> bool:
    """Returns whether two runs have read all of so many files completely."""
    return len(before) == len(now) == count and all(sample[3] for sample in now)

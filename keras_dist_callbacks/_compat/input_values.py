"""What the arrays of an input hold, as a hash: numbers and texts, dense, sparse and ragged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import xxhash
from keras import tree

from keras_dist_callbacks._compat import input_files

LARGEST = 2**32  # bytes that are read whole, within half a second; of more, rows evenly spread
_ROWS_READ = 64
_LARGEST_TEXTS = 2**22
VALUES = "values"
"""The last part of the name of a fact that tells the values of arrays apart, and says nothing else of them."""
UNREAD = "unread"
"""The last part of the name of a fact that says what of them was not read."""


def facts_of(where: str, arrays: Iterable[Any]) -> dict[str, str]:
    """A hash of what arrays hold, and what of them it does not tell."""
    digest, unread = digest_of(arrays)
    return {f"{where}/{VALUES}": digest, **({f"{where}/{UNREAD}": "; ".join(unread)} if unread else {})}


def digest_of(arrays: Iterable[Any]) -> tuple[str, list[str]]:
    """The hash, and a clause for each kind of what was not read."""
    digest = xxhash.xxh3_64()
    unread = [_add(part, digest) for array in arrays if array is not None for part in _parts(array)]
    return digest.hexdigest(), list(dict.fromkeys(filter(None, unread)))


def tensors_of(stage: Any) -> list[Any]:
    """The tensors of a `from_tensors` or `from_tensor_slices`, ragged and sparse ones as the user gave them."""
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
    elif hasattr(array, "tocsr"):
        rows = array.tocsr()
        yield from [rows.data, rows.indices, rows.indptr]
    else:
        yield array


def _add(array: Any, digest: xxhash.xxh3_64) -> str | None:
    texts = input_files.texts_of(array)
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
    """The arrays in what `fit()` was given, without those that are None."""
    return [array for array in tree.flatten(sources) if array is not None]

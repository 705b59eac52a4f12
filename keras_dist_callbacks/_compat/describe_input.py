"""What an input is made of, as flat names and texts that two runs can compare."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash
from keras import tree

from keras_dist_callbacks._compat import graphs, pipeline
from keras_dist_callbacks._compat.fit import RunningFit

_LEFT_OUT = {"_name", "_metadata", "_use_inter_op_parallelism", "_preserve_cardinality", "_force_synchronous"}
_LARGEST_CONSTANT = 2**24
_LARGEST_ARRAY = 2**28  # bytes that are read whole, within a tenth of a second; of more, rows evenly spread
_ROWS_READ = 64
VALUES = "values"
"""The last part of the name of a fact that tells the values of arrays apart, and says nothing else of them."""


def input_facts(fit: RunningFit) -> dict[str, str]:
    """Structure and constants of the training data: sizes, seeds, rows, types of elements."""
    adapter = fit.epoch_iterator.data_adapter
    kind = type(adapter).__name__
    facts = {
        "input/kind": kind.removesuffix("Adapter"),
        "input/elements": str(pipeline.original(fit.data).element_spec),
    }
    if kind == "ArrayDataAdapter":
        facts["input/rows"] = str(adapter._num_samples)
        facts["input/batch_size"] = str(adapter.batch_size)
        facts["input/shuffle"] = str(adapter._shuffle)
        facts.update(_values("input", tree.flatten(adapter._inputs)))
    elif kind == "PyDatasetAdapter":
        facts["input/class"] = type(fit.input).__name__
        facts["input/shuffle"] = str(adapter.shuffle)
    elif kind == "TFDatasetAdapter":
        for number, stage in enumerate(reversed(list(pipeline.stages(pipeline.original(fit.data))))):
            where = f"input/stage {number} ({type(stage).__name__.strip('_').removesuffix('Dataset')})"
            facts[where] = "present"
            facts.update({f"{where}/{name}": text for name, text in _constants(stage).items()})
            facts.update(_values(where, getattr(stage, "_tensors", ())))
    facts["batches per pass"] = str(fit.known_length)
    return {**facts, **_arguments(fit)}


def _arguments(fit: RunningFit) -> dict[str, str]:
    weights = fit.argument("class_weight")
    return {
        "class_weight": str(None if weights is None else sorted(weights.items())),
        "validation_freq": str(fit.argument("validation_freq")),
    }


def _constants(stage: Any) -> dict[str, str]:
    import tensorflow as tf

    facts = {}
    for name, value in vars(stage).items():
        if name in _LEFT_OUT:
            continue
        if tf.is_tensor(value) and value.shape.rank == 0 and value.dtype.is_numpy_compatible:
            value = value.numpy()
        if isinstance(value, bool | int | float | str | np.generic):
            facts[name.strip("_")] = str(value)
        elif name in ("_tensors", "_tensor"):
            facts["shapes"] = str([tuple(tensor.shape) for tensor in (value if isinstance(value, list) else [value])])
    for number, function in enumerate(getattr(stage, "_functions", list)()):
        traced = getattr(function, "function", None)
        if traced is not None and hasattr(traced, "graph"):
            facts[f"tensors that function {number} holds"] = _captured_constants(traced)
            facts.update({f"seed of {op}": seeds for op, seeds in graphs.seeds(traced.graph).items()})
    return facts


def _values(where: str, arrays: Iterable[Any]) -> dict[str, str]:
    """A hash of what arrays hold, as far as they are numbers."""
    digest = xxhash.xxh3_64()
    for array in arrays:
        found = _numbers(array)
        if found is not None:
            digest.update(f"{found.dtype} {found.shape}".encode())
            digest.update(np.ascontiguousarray(found).reshape(-1).view(np.uint8).data)
    return {f"{where}/{VALUES}": digest.hexdigest()}


def _numbers(array: Any) -> np.ndarray[Any, Any] | None:
    import tensorflow as tf

    if isinstance(array, tf.Tensor) and (not hasattr(array, "numpy") or not array.dtype.is_numpy_compatible):
        return None
    if not isinstance(array, np.ndarray | tf.Tensor) and not hasattr(array, "iloc"):
        return None  # sparse, ragged, or of another library
    size = 8 * math.prod(array.shape) if not isinstance(array, np.ndarray) else array.nbytes
    if size > _LARGEST_ARRAY and array.shape[0] > _ROWS_READ:
        rows = np.linspace(0, array.shape[0] - 1, _ROWS_READ).astype(np.int64)
        array = tf.gather(array, rows) if isinstance(array, tf.Tensor) else getattr(array, "iloc", array)[rows]
    found = np.asarray(array)
    return None if found.dtype.hasobject else found


def _captured_constants(function: Any) -> str:
    """A hash of the tensors that a function holds on to, such as the mean of a `Normalization` in a map."""
    digest = xxhash.xxh3_64()
    for tensor in getattr(function, "captured_inputs", ()):
        if tensor.dtype.is_numpy_compatible and tensor.dtype.name not in {"resource", "variant", "string"}:
            value = np.ascontiguousarray(tensor.numpy())
            digest.update(f"{value.dtype} {value.shape}".encode())
            if value.nbytes <= _LARGEST_CONSTANT:
                digest.update(value.tobytes())
    return digest.hexdigest()

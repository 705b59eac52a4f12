"""The seeds that a fresh iterator's shuffles have drawn: they say which pass over a dataset it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from keras_dist_callbacks._compat import pipeline

LARGEST_BUFFERS = 100_000  # elements of all shuffles: two seconds
_SEEDS = ("seed", "seed2")


def has_too_large_buffers(dataset: Any) -> bool:
    """Returns whether it would take too long to look at an iterator: 17 us for each element of a shuffle's buffer."""
    sizes = (int(getattr(stage, "_buffer_size", 0)) for stage in pipeline.reshuffling_stages(dataset))
    return sum(sizes) > LARGEST_BUFFERS


def of_iterator(iterator: Any) -> list[int] | None:
    """Returns the seeds of the shuffles of an iterator of which nothing was read; None where it does not show them.

    Nothing changes by looking. A shuffle that begins later, as one within another's input, is not among them.
    """
    import tensorflow as tf
    from tensorflow.python.ops import gen_dataset_ops

    resource, ignores_state = getattr(iterator, "_iterator_resource", None), 1
    if resource is None:
        return None
    try:
        state = gen_dataset_ops.serialize_iterator(resource, external_state_policy=ignores_state)
        parts = _parts(tf.io.serialize_tensor(state).numpy())
        return [seed for part in parts if b"seed2" in part for seed in _seeds_in(part)]
    except Exception:  # noqa: BLE001 - a stage without a state that can be saved, or another format of it
        return None


def watch(epoch_iterator: Any, begun: Callable[[Any], None]) -> None:
    """Calls `begun` with the next iterator that an epoch iterator of Keras' makes, before anything is read of it."""
    dataset = epoch_iterator._get_iterator()

    class Watched:
        def __iter__(self) -> Any:
            unwatch(epoch_iterator)
            iterator = iter(dataset)
            begun(iterator)
            return iterator

    epoch_iterator._get_iterator = Watched


def unwatch(epoch_iterator: Any) -> None:
    """Takes that back."""
    vars(epoch_iterator).pop("_get_iterator", None)


def _parts(serialized: bytes) -> Iterator[bytes]:
    """The stages' states: a tensor's content is the length of each, then all of them."""
    from tensorflow.core.framework import tensor_pb2

    tensor = tensor_pb2.TensorProto.FromString(serialized)
    content, place, sizes = tensor.tensor_content, 0, []
    for _ in range(tensor.tensor_shape.dim[0].size):
        size = shift = 0
        while True:
            byte, place = content[place], place + 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        sizes.append(size)
    for size in sizes:
        yield content[place : place + size]
        place += size


def _seeds_in(part: bytes) -> list[int]:
    """A stage's state is the names of its values, and one compressed element of them."""
    import tensorflow as tf
    from tensorflow.core.framework import tensor_pb2
    from tensorflow.python.ops import gen_experimental_dataset_ops as ops

    found = tensor_pb2.VariantTensorDataProto.FromString(part)
    _, *names = found.metadata.decode().strip("@").split("@@")
    if not set(_SEEDS) <= set(names):
        return []
    element = tf.io.parse_tensor(found.tensors[0].SerializeToString(), tf.variant)
    types, shapes = [tf.int64] * len(names), [()] * len(names)
    values = ops.uncompress_element(element, output_types=types, output_shapes=shapes)
    return [int(value) for name, value in zip(names, values, strict=True) if name in _SEEDS]

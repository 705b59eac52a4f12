"""Reading what `tf.train.Checkpoint` wrote: its object graph has no public reader."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2 as graphs

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def restore_model(model: Any, prefix: str) -> None:
    """Gives a compiled, built model the values of a checkpoint that holds it, with its optimizer.

    The model may be the checkpoint's root or lie below it under any name; its optimizer within it or beside it.

    Args:
        model: The model; it may be changed even if this fails.
        prefix: The checkpoint's path without `.index`.

    Raises:
        ValueError: No part of the checkpoint has a value for every variable of the model.
    """
    names = [name for name in _children_of_the_root(prefix) if not name.startswith("_") and name != "save_counter"]
    beside = [name for name in names if "opt" in name.lower()]
    reasons: list[str] = []
    for root in ["", *(name for name in names if name not in beside)]:
        parts = {root: model, **dict.fromkeys(beside, model.optimizer)}
        checkpoint = tf.train.Checkpoint(**parts) if root else tf.train.Checkpoint(model)
        try:
            status = checkpoint.restore(prefix).expect_partial()
            status.assert_existing_objects_matched()
        except (AssertionError, ValueError) as error:
            reasons.append(f"{root or 'its root'}: {str(error).splitlines()[0]}")
        else:
            return
    raise ValueError(f"no part of it holds the model ({'; '.join(reasons)})")


def _children_of_the_root(prefix: str) -> list[str]:
    graph = graphs.TrackableObjectGraph()
    graph.ParseFromString(tf.train.load_checkpoint(prefix).get_tensor(_GRAPH))
    return [child.local_name for child in graph.nodes[0].children]

"""The codec of the user's values: what it cannot hold is refused when it is written."""

from __future__ import annotations

import collections
import datetime
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from keras_dist_callbacks.backups.snapshot import JSON, SharedTensor
from keras_dist_callbacks.state import own_values


class Nothing:
    """No object is referred to."""

    def __init__(self, tensors: dict[str, Any] | None = None) -> None:
        self.tensors = tensors or {}

    def array(self, name: str, strides: Any = None) -> Any:
        return np.array(self.tensors[name])

    def find(self, value: Any, path: str, tensors: dict[str, SharedTensor]) -> JSON | None:
        return None

    def resolve(self, kind: str, value: JSON, present: Any) -> Any:
        raise LookupError(kind)


def carried(value: Any) -> Any:
    tensors: dict[str, SharedTensor] = {}
    text = json.dumps(own_values.encode(value, "here", tensors, Nothing()))
    arrays = {name: held.array() for name, held in tensors.items()}
    return own_values.decode(json.loads(text), arrays, Nothing(arrays))


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, -(2**70), 0.1, float("inf"), "x", b"\x00", 1 + 2j, (1, (2,)), [1, [2]], {1: {2: 3}}),
        *({1, 2}, frozenset([1]), collections.deque([1], 4), {(1, 2): "x"}, {None: 1.5}),
        *(pathlib.Path("a/b"), pathlib.PurePosixPath("a/b")),
        *(datetime.date(2024, 2, 3), datetime.datetime(2024, 2, 3, 4, 5, 6, 7), datetime.timedelta(1, 2, 3)),
        *({np.str_("a"): 1}, np.float32(1.5), np.int8(3), list(range(100)), [0.5] * 70, bytearray(b"a")),
    ],
    ids=repr,
)
def test_values_come_back_with_their_types(value: Any) -> None:
    found = carried(value)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(2, 3), np.array([True]), np.array(["a", "bc"]), np.float16([1])]
)
def test_arrays_come_back(array: np.ndarray[Any, Any]) -> None:
    found = carried({"a": array})["a"]
    assert found.tolist() == array.tolist()
    assert (found.shape, found.dtype) == (array.shape, array.dtype)


@pytest.mark.parametrize(
    "value",
    [object(), lambda: 0, [object()], {"a": np.array([object()])}, np.ones(2, "M8[s]")],
    ids=["object", "function", "list", "array of objects", "dates"],
)
def test_what_cannot_be_held_is_refused(value: Any) -> None:
    with pytest.raises(own_values.UnstorableError, match="here"):
        own_values.encode(value, "here", {}, Nothing())


def test_a_container_within_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(own_values.UnstorableError, match="nested"):
        own_values.encode(value, "here", {}, Nothing())

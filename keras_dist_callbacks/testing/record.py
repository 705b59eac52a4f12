"""Records everything that a training run ends with, and compares two runs bit for bit."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.terminal import first_few

PathLike = str | os.PathLike[str]


def record_run(path: PathLike, model: Any, history: Any) -> None:
    """Writes the final state of a run as `<path>.npz` and `<path>.json`.

    Recorded is every component of every variable of the model, its optimizer and its metrics, as this
    process holds it: under MirroredStrategy one per replica, because metrics and BatchNormalization differ
    between them. Nothing is reduced over workers, so each worker must record to a path of its own.

    Args:
        path: Where to, with or without a suffix; an older recording is replaced.
        model: A trained `keras.Model`.
        history: What `fit` returned, or the `dict` in it.

    Raises:
        ConfigError: An argument is something else.
    """
    if not all(hasattr(model, part) for part in ("variables", "metrics", "distribute_strategy")):
        raise validation.invalid_argument("model", model, "a keras.Model")
    base, values = _base(validation.path("path", path)), _history(history)
    arrays: dict[str, Any] = {}
    kinds: dict[str, list[Any]] = {}
    for key, value in _components(model):
        kinds[key] = [str(value.dtype), list(value.shape)]
        # npz keeps only NumPy's own types; bfloat16 and its like travel as their bytes
        arrays[key] = value if value.dtype.isbuiltin == 1 else np.frombuffer(value.tobytes(), np.uint8)
    with _replacing(_sibling(base, ".npz")) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
    with _replacing(_sibling(base, ".json")) as temporary:
        temporary.write_text(json.dumps({"variables": kinds, **values}, indent=1), encoding="utf-8")


def compare_runs(a: PathLike, b: PathLike) -> list[str]:
    """Compares two recordings bit for bit.

    Variables are compared by name, or one after the other if only their names differ.

    Args:
        a: Path of a recording, as given to `record_run`.
        b: Path of the other one.

    Returns:
        One line per difference: variables that differ with their largest absolute difference, then what
        differs in the History. Empty if the runs are identical.

    Raises:
        ConfigError: A recording does not exist, or what was given is not a path.
    """
    first, second = _load(validation.path("a", a)), _load(validation.path("b", b))
    return [*_compare_variables(first, second), *_compare_histories(first, second)]


def assert_same_run(a: PathLike, b: PathLike) -> None:
    """Fails unless two recordings are identical to the last bit: all variables and the History.

    Args:
        a: Path of a recording, as given to `record_run`.
        b: Path of the other one.

    Raises:
        AssertionError: They differ; the message names the first differences.
        ConfigError: A recording does not exist, or what was given is not a path.
    """
    differences = compare_runs(a, b)
    if differences:
        lines = "\n  ".join(first_few(differences, most=12))
        raise AssertionError(f"{os.fspath(a)} and {os.fspath(b)} differ in {len(differences)} places:\n  {lines}")


@dataclass(frozen=True)
class _Recorded:
    variables: dict[str, npt.NDArray[Any]]
    epochs: list[Any] | None
    history: dict[str, list[Any]]


def _components(model: Any) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Each local component of each variable once, as an array, under `path#occurrence@replica`."""
    optimizer = getattr(model, "optimizer", None)
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    variables = [*model.variables, *(optimizer.variables if optimizer is not None else ()), *metrics]
    seen: collections.Counter[str] = collections.Counter()
    for variable in {id(variable): variable for variable in variables}.values():
        name = f"{variable.path}#{seen[variable.path]}"
        seen[variable.path] += 1
        # a global read of a metric would be a collective, in which one worker alone hangs
        local = model.distribute_strategy.experimental_local_results(variable.value)
        for replica, component in enumerate(local):
            yield f"{name}@{replica}", np.asarray(component.numpy())


def _history(history: Any) -> dict[str, Any]:
    values = history if isinstance(history, dict) else getattr(history, "history", None)
    if not isinstance(values, dict) or not all(isinstance(column, list) for column in values.values()):
        raise validation.invalid_argument("history", history, "what fit() returned, or the dict of lists in it")
    epochs = getattr(history, "epoch", None)
    return {
        "epochs": None if epochs is None else [_exact(epoch) for epoch in epochs],
        "history": {name: [_exact(value) for value in column] for name, column in values.items()},
    }


def _exact(value: Any) -> Any:
    """Returns a number as text that says all its bits; arrays as lists of such."""
    array = np.asarray(value)
    if array.ndim:
        return [_exact(item) for item in array]
    item = array.item()
    return item.hex() if isinstance(item, float) else item if isinstance(item, int | str) else repr(item)


def _base(path: PathLike) -> Path:
    given = Path(path)
    return given.with_suffix("") if given.suffix in (".npz", ".json") else given


def _sibling(base: Path, suffix: str) -> Path:
    return base.with_name(base.name + suffix)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary name that becomes `path`: a killed process leaves the old recording or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _sibling(path, f".tmp-{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _load(path: PathLike) -> _Recorded:
    base = _base(path)
    try:
        meta = json.loads(_sibling(base, ".json").read_text(encoding="utf-8"))
        with np.load(_sibling(base, ".npz"), allow_pickle=False) as file:
            variables = {key: _typed(file[key], *kind) for key, kind in meta["variables"].items()}
    except FileNotFoundError as error:
        raise ConfigError(f"no recorded run at {base}: {error.filename} is missing") from error
    return _Recorded(variables, meta["epochs"], meta["history"])


def _typed(array: npt.NDArray[Any], dtype: str, shape: list[int]) -> npt.NDArray[Any]:
    if str(array.dtype) == dtype:
        return array
    return np.frombuffer(array.tobytes(), getattr(ml_dtypes, dtype)).reshape(shape)


def _compare_variables(a: _Recorded, b: _Recorded) -> Iterator[str]:
    renamed = _renamed(a, b)
    if not renamed:
        yield from _only_in_one("variable", a.variables, b.variables)
    for key, one in a.variables.items():
        other = b.variables.get(renamed.get(key, key))
        if other is None:
            continue
        if one.dtype != other.dtype or one.shape != other.shape:
            yield f"variable {key}: {one.dtype}{one.shape} against {other.dtype}{other.shape}"
        elif one.tobytes() != other.tobytes():
            yield f"variable {key}: {_difference(one, other)}"


def _renamed(a: _Recorded, b: _Recorded) -> dict[str, str]:
    """Returns the other recording's names, if only names differ.

    Keras gives the variables of a model that was loaded from a file other paths than those of one that was
    built (`conv2d/kernel` for `sequential/conv2d/kernel`), and numbers the layers of a second model again.
    Their order is the same.
    """
    if set(a.variables) == set(b.variables) or len(a.variables) != len(b.variables):
        return {}
    pairs = list(zip(a.variables.items(), b.variables.items(), strict=True))
    alike = all(
        _final_comparison(one) == _final_comparison(other) and x.dtype == y.dtype and x.shape == y.shape
        for (one, x), (other, y) in pairs
    )
    return {one: other for (one, _), (other, _) in pairs} if alike else {}


def _final_comparison(key: str) -> str:
    """Returns what survives a renaming: `kernel@0` of `sequential/conv2d/kernel#0@0`."""
    path, _, rest = key.rpartition("#")
    return re.split("[/_]", path)[-1] + "@" + rest.partition("@")[2]


def _difference(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> str:
    as_bytes = [np.frombuffer(array.tobytes(), np.uint8).reshape(array.size, -1) for array in (one, other)]
    count = np.count_nonzero((as_bytes[0] != as_bytes[1]).any(axis=1))
    with np.errstate(all="ignore"):
        largest = np.max(np.abs(one.astype(np.float64) - other.astype(np.float64)))
    return f"{count} of {one.size} values differ, max abs difference {largest:g}"


def _compare_histories(a: _Recorded, b: _Recorded) -> Iterator[str]:
    if a.epochs != b.epochs:
        yield f"history epochs: {a.epochs} against {b.epochs}"
    yield from _only_in_one("history key", a.history, b.history)
    for key in (key for key in a.history if key in b.history):
        one, other = a.history[key], b.history[key]
        if len(one) != len(other):
            yield f"history {key}: {len(one)} values against {len(other)}"
        for index, (x, y) in enumerate(zip(one, other, strict=False)):
            if x != y:
                yield f"history {key}, value {index}: {_describe(x, y)}"
                break


def _only_in_one(what: str, a: Iterable[str], b: Iterable[str]) -> Iterator[str]:
    first, second = list(a), list(b)
    yield from (f"{what} {key}: only in the first" for key in first if key not in second)
    yield from (f"{what} {key}: only in the second" for key in second if key not in first)


def _describe(x: Any, y: Any) -> str:
    try:
        one, other = (float.fromhex(value) if isinstance(value, str) else float(value) for value in (x, y))
    except (TypeError, ValueError):
        return f"{x} against {y}"
    return f"{one!r} against {other!r}, abs difference {abs(one - other):g}"

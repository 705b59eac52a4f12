"""Plain attributes of users' callbacks that have no `get_state`: those that training changes are saved and restored.

What is not plain (a generator, a file, an object of a class of one's own) cannot be looked into: a continuation is
then exact if it keeps no state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_dist_callbacks.backups.json_values import from_json, to_json
from keras_dist_callbacks.backups.snapshot import JSON, SharedTensor
from keras_dist_callbacks.errors import BackupError
from keras_dist_callbacks.training import state_detection

TOPIC = "callback_attributes"
_NEVER = {"model", "_model", "params", "history"}
_SHOWN = 40
_NUMBERS = "$numbers"


@dataclass(frozen=True)
class WatchedObject:
    """An object of the user's whose attributes are looked at.

    Attributes:
        owner: The object.
        leave: Names that are saved in another way.
    """

    owner: Any
    leave: frozenset[str] = frozenset()


class CallbackAttributes:
    """The attributes of what a fit calls, beginning with what they are now: after all `on_train_begin`.

    Attributes:
        conditions: As of the last `capture`: attributes that may hold a state, and those that were saved without the
            callback's say, to be read behind "exact if".
    """

    def __init__(self, watched: Mapping[str, WatchedObject]) -> None:
        self._watched = watched
        self._began = {name: {key: _began(value) for key, value in _attributes(w)} for name, w in watched.items()}
        self._seen = {
            name: {key: state_detection.summarize(value) for key, value in _attributes(w)}
            for name, w in watched.items()
        }
        self._around = {name: state_detection.referenced_globals(w.owner) for name, w in watched.items()}
        self.conditions: list[str] = []

    def capture(self, is_saved: Callable[[Any], bool]) -> tuple[dict[str, JSON], dict[str, SharedTensor]]:
        """What has changed since the begin, with what it was then.

        Args:
            is_saved: Tells whether all of an object's variables are saved in another way.
        """
        topic: dict[str, JSON] = {}
        tensors: dict[str, SharedTensor] = {}
        self.conditions = []
        for name, watched in self._watched.items():
            changed: dict[str, JSON] = {}
            hidden = [
                *state_detection.closures(watched.owner, is_saved),
                *state_detection.changed_globals(self._around[name], is_saved),
            ]
            for key, value in _attributes(watched):
                digest, began = state_detection.digest(value), self._began[name].get(key, _ABSENT)
                if digest is None:
                    hidden += [key] * self._hides(name, key, value, is_saved)
                elif digest != began[0]:
                    try:
                        now = _to_json(value, f"attributes/{name}/{key}", tensors)
                    except BackupError:  # numbers of a type that a backup cannot hold
                        hidden.append(key)
                    else:
                        changed[key] = {"began": list(began), "now": now}
            if changed:
                topic[name] = changed
            if changed or hidden:
                self.conditions.append(_condition(name, list(changed), hidden))
        return ({TOPIC: topic} if topic else {}), tensors

    def _hides(self, name: str, key: str, value: Any, is_saved: Callable[[Any], bool]) -> bool:
        """Whether an attribute that is not plain may be a state."""
        now, began = state_detection.summarize(value), self._seen[name].get(key)
        return (
            began is None
            or not now.is_same(began)
            or any(state_detection.may_hold_state(x, is_saved) for x in now.objects)
        )

    def restore(self, saved: Mapping[str, JSON], tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Puts back what began as it does now.

        Returns:
            What began otherwise, one sentence each.
        """
        notes = []
        for name, found in saved.items():
            if name not in self._watched:
                continue
            for key, record in found.items():
                now = self._began[name].get(key, _ABSENT)
                if now[0] == record["began"][0]:
                    _put(self._watched[name].owner, key, _from_json(record["now"], tensors))
                else:
                    notes.append(
                        f"the attribute {key} of the {name} began as {record['began'][1]} in the interrupted "
                        f"run and as {now[1]} now, so it was not restored"
                    )
        return notes


def _put(owner: Any, key: str, value: Any) -> None:
    """Sets an attribute; a list or dict in place, because others may hold on to it."""
    present = getattr(owner, key, None)
    if type(present) is list and type(value) is list:
        present[:] = value
    elif type(present) is dict and type(value) is dict:
        present.clear()
        present.update(value)
    else:
        setattr(owner, key, value)


_ABSENT = ("absent", "absent")


def _condition(name: str, changed: list[str], hidden: list[str]) -> str:
    saved = f" but {', '.join(changed)}, which was restored" if changed else ""
    where = f" (in {', '.join(hidden)})" if hidden else ""
    return f"the {name} keeps no state{where}{saved}; get_state and set_state would make it certain"


def _attributes(watched: WatchedObject) -> Iterator[tuple[str, Any]]:
    for key, value in vars(watched.owner).items():
        if key not in _NEVER and key not in watched.leave and not key.startswith("_self_"):  # TensorFlow's own
            yield key, value


def _began(value: Any) -> tuple[str | None, str]:
    text = repr(value) if not isinstance(value, np.ndarray) else f"an array of shape {value.shape}"
    return state_detection.digest(value), text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _to_json(value: Any, where: str, tensors: dict[str, SharedTensor]) -> JSON:
    numbers = state_detection.as_array(value)
    return to_json(value, where, tensors) if numbers is None else {_NUMBERS: to_json(numbers, where, tensors)}


def _from_json(value: JSON, tensors: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, dict) and _NUMBERS in value:
        return from_json(value[_NUMBERS], tensors).tolist()
    return from_json(value, tensors)

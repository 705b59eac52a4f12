"""Which facts of a script exist, how each is found and called, and what its change means.

To add one, add a row. That its value is another one is a `setting`, which makes a resume not exact, unless the row says
otherwise: see `backups/findings.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf
import xxhash

from keras_dist_callbacks._compat import model_config, model_parts, pipeline, rng
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.checkpoints.model_config import A_NUMBER
from keras_dist_callbacks.state.facts import of_model, rates
from keras_dist_callbacks.state.facts.of_input import Input

Facts = Mapping[str, Mapping[str, Any]]
"""What was found, as JSON: by the name of the row, then by what users are told it is."""

_LONGEST = 80


def _of_run(code: str, was: Any, now: Any) -> Iterator[Finding]:
    if was is not None and was != now:  # what a backup does not say is not compared
        yield Finding(code, detail=(str(was), str(now)))


def _optimizer(called: str, was: Any, now: Any) -> Iterator[Finding]:
    if was != now:
        is_schedule = A_NUMBER in (was, now) and None not in (was, now)  # in one of them, the rate is a variable
        yield _changed("other-training" if is_schedule else "setting", called, was, now)


def _trainable(called: str, was: Any, now: Any) -> Iterator[Finding]:
    if was != now:  # with other layers, variables do not fit anyway
        yield _changed("setting" if None in (was, now) else "other-training", called, was, now)


def _data(where: str, was: Any, now: Any) -> Iterator[Finding]:
    if was and now:  # of a stage that only one run has, its name is said
        if was["shapes"] != now["shapes"]:
            yield _changed("setting", f"shapes of the {where}", was["shapes"], now["shapes"])
        elif was["values"] != now["values"]:
            yield Finding("values", where)
    if now and now["unread"]:
        yield Finding("data-not-compared", where, (now["unread"],))


def _files(where: str, was: Any, now: Any) -> Iterator[Finding]:
    if was is None or now is None:
        return  # their names are compared
    samples = list(zip(was["samples"], now["samples"], strict=False))
    changed = sum(one != other for one, other in samples)
    if changed or (was["sizes"] != now["sizes"] and None not in (was["sizes"], now["sizes"])):
        yield Finding("files-changed", f"{where}'s files", (str(changed or "some"),))
    are_compared = len(samples) == was["count"] == now["count"] and all(is_whole for _, (_, is_whole) in samples)
    if not are_compared and (was["times"] is None or was["times"] != now["times"]):
        yield Finding("files-not-compared", where, (f"{now['count']} files",))


def _changed(code: str, called: str, was: Any, now: Any) -> Finding:
    return Finding(code, detail=(called, _shown(was), _shown(now)))


def _shown(value: Any) -> str:
    text = "absent" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


class Fact(NamedTuple):
    """One thing that training depends on and no variable holds, or several of one kind.

    Attributes:
        name: What it is; users are told so if it is one thing.
        find: Returns its value, or several by what users are told each is; None: there is none.
        change: The code of the finding when another value is found than in the interrupted run, or the findings of what
            something is called and its two values, of which one may be None; None: nothing follows.
        tells: Whether another value of it is that of another fit of the script.
    """

    name: str
    find: Callable[[Any], Any]
    change: str | Callable[[str, Any, Any], Iterator[Finding]] | None = "setting"
    tells: bool = True


RUN = (
    Fact("replicas", lambda strategy: int(strategy.num_replicas_in_sync), _of_run),
    Fact("strategy", lambda strategy: type(strategy).__name__, _of_run),
    Fact("keras", lambda strategy: keras.__version__, _of_run),
    Fact("tensorflow", lambda strategy: tf.__version__, _of_run),
    Fact("seed", lambda strategy: rng.global_seed(), _of_run),
)
"""Of a strategy. The `info` of a backup holds these, those of `FIT` and the number of workers."""

FIT = (
    Fact("steps_per_epoch", lambda fit: fit.steps_per_epoch or fit.num_batches, _of_run),
    Fact("steps_per_execution", lambda fit: fit.steps_per_execution, _of_run),
    Fact("model", lambda fit: fit.model.name, None),
)
"""Of a running fit."""

INPUT = (
    Fact("class_weight", lambda given: str(sorted((given.fit.argument("class_weight") or {}).items()) or None)),
    Fact("validation_freq", lambda given: str(given.fit.argument("validation_freq"))),
    Fact("validation_steps", lambda given: str(given.fit.argument("validation_steps"))),
    Fact("validation_batch_size", lambda given: str(given.fit.argument("validation_batch_size"))),
    Fact("input/kind", lambda given: given.fit.kind_of_input),
    Fact("input/elements", lambda given: str(pipeline.original(given.fit.data).element_spec)),
    Fact("input/batch_size", lambda given: given.fit.batch_size),
    Fact("input/shuffle", lambda given: given.fit.shuffle),
    Fact(
        "input/class", lambda given: type(given.fit.input).__name__ if given.fit.kind_of_input == "PyDataset" else None
    ),
    Fact("stages", Input.stages),
    Fact("data", Input.data, _data),
    Fact("first rows", Input.first_rows, None, tells=False),
    Fact("files", Input.files, _files, tells=False),  # what can be read of them in a given time differs
    Fact("names of files", Input.names_of_files, "files-names"),
    Fact("batches per pass", lambda given: str(given.fit.known_length)),
)
"""Of an `Input`, when a fit begins."""

PASSES = (
    Fact(
        "seeds", Input.seeds, "input-seed", tells=False
    ),  # TensorFlow draws others when a script runs twice in a process
)
"""The same; they say nothing about which training it is."""

COMPILE = (
    Fact("run_eagerly", lambda model: bool(model.run_eagerly)),
    Fact("jit_compile", lambda model: str(model.jit_compile)),
    Fact("loss", lambda model: of_model.called(model_config.compiled_objects(model)["loss"])),
    Fact("loss_weights", lambda model: str(model_config.loss_weights(model))),
    Fact("metrics", lambda model: of_model.called(model_config.compiled_objects(model)["metrics"])),
    Fact("weighted_metrics", lambda model: of_model.called(model_config.compiled_objects(model)["weighted metrics"])),
    Fact("optimizer", of_model.optimizer, _optimizer),
)
"""Of a model, when a fit begins."""

RATE = Fact("learning rate", rates.set_in_code)
"""The same. In a run that resumes, what a change means depends on who sets it: see `rates.py`."""

MODEL = (
    Fact("layers", of_model.layers),
    Fact("trainable", of_model.trainable, _trainable),
    Fact("input layers", of_model.input_layers, tells=False),  # those that its first step builds were not given
    Fact("vocabularies", of_model.vocabularies),
    Fact("trainable of single variables", lambda model: str(model_parts.variables_set_trainable(model))),
    Fact("dtype policy", lambda model: str(getattr(model.dtype_policy, "name", model.dtype_policy))),
)
"""Of a model, once it is built."""


def find(facts: Iterable[Fact], source: Any) -> dict[str, dict[str, Any]]:
    """Returns the facts of a source, as they are read from a backup."""
    found = {fact.name: fact.find(source) for fact in facts}
    several = {name: value if isinstance(value, dict) else {name: value} for name, value in found.items()}
    as_read: dict[str, dict[str, Any]] = json.loads(json.dumps(several, default=str))
    return as_read


def changes(facts: Iterable[Fact], before: Facts, now: Facts) -> Iterator[tuple[str, Finding]]:
    """What differs between two runs, or was not compared, each with its name.

    Of a setting that only one of them has, such as a stage, what is within it is not named too.
    """
    names = {name: value for found in now.values() for name, value in found.items()}
    pairs = [
        (fact, name, was.get(name), is_now.get(name))
        for fact in facts
        for was, is_now in [(before.get(fact.name, {}), now.get(fact.name, {}))]
        for name in dict.fromkeys([*was, *is_now])
    ]
    alone = tuple(f"{name}/" for fact, name, *both in pairs if fact.change == "setting" and both.count(None) == 1)
    for fact, name, was, is_now in pairs:
        called = _called(name, names)
        if callable(fact.change):
            yield from ((name, finding) for finding in fact.change(called, was, is_now))
        elif fact.change and was != is_now and not name.startswith(alone):
            yield name, _changed(fact.change, called, was, is_now)


def digest(found: Facts) -> str:
    """Returns what is equal for two fits that were given the same, also where the model of one is built later."""
    told = [found.get(fact.name) for fact in (*INPUT, *COMPILE, RATE, *MODEL) if fact.tells]
    return xxhash.xxh3_64_hexdigest(json.dumps(told).encode())


def _called(name: str, names: Mapping[str, Any]) -> str:
    """Returns what users are told it is: "rate of the layer 'drop'", "buffer_size of the input's Dataset.shuffle"."""
    parts = name.split("/")
    if parts[-2:] == ["config", "name"]:
        return "the name of a layer"
    for end in range(len(parts) - 1, 0, -1):
        layer = names.get("/".join([*parts[:end], "name"]))
        if layer is not None and parts[end:] != ["name"]:
            return f"{'/'.join(part for part in parts[end:] if part != 'config')} of the layer {layer!r}"
    root, _, inner = name.partition("/")
    if root in ("input", "validation data") and inner:
        stage, _, setting = inner.partition("/")
        return f"{setting} of the {root}'s {stage}" if setting else f"{root}'s {stage}"
    return name

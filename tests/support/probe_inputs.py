"""Run by every worker: interrupts and resumes a fit on every kind of input under a strategy, and prints what came."""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_dist_callbacks as kdc
from keras_dist_callbacks._compat.variables import components, named_variables
from tests.support import tiny, workload
from tests.support.inputs import INPUTS

WHERE = (2, 1)


def state(model: keras.Model) -> dict[str, list[bytes]]:
    return {
        name: [np.asarray(c.numpy()).tobytes() for c in components(variable)]
        for name, variable in named_variables(model).items()
    }


def attempt(strategy: Any, name: str, directory: str) -> str:
    def run(backup: str | None, *callbacks: Any) -> tuple[Any, Any]:
        keras.utils.clear_session(free_memory=False)
        with strategy.scope():
            model = tiny.model(clear=False)
        arguments = {"epochs": 4, **INPUTS[name]()}
        return model, tiny.fit(model, backup, callbacks, **arguments)

    reference, expected = run(None)
    again, _ = run(None)
    if state(again) != state(reference):
        return "not reproducible: two uninterrupted runs differ"
    try:
        run(directory, tiny.StopAt(*WHERE))
    except tiny.Stop:
        pass
    else:
        return "not interrupted"
    callback = kdc.BackupAndRestore(directory, save_freq=1, write_options=kdc.WriteOptions(when_busy="wait"), verbose=0)
    model, history = run(None, callback)
    same = state(model) == state(reference) and history.history == expected.history
    notes = callback.restored.notes if callback.restored else ("not restored",)
    return ("exact" if same else "differs") + "".join(f"; {note}" for note in notes)


def main(kind: str) -> None:
    warnings.filterwarnings("ignore")
    keras.utils.disable_interactive_logging()
    strategy = workload.make_strategy(kind)
    cluster = kdc.advanced.Cluster.detect()
    root = cluster.broadcast(tempfile.mkdtemp() if cluster.is_chief else None, "probe")
    results = {}
    for number, name in enumerate(INPUTS):
        try:
            results[name] = attempt(strategy, name, str(Path(root) / str(number)))
        except Exception as error:  # noqa: BLE001 - the probe's result
            results[name] = f"{type(error).__name__}: {str(error)[:300]}"
        print(f"{name}: {results[name]}", flush=True)
    print("RESULTS " + json.dumps(results), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""A script of several fits: folds, grids, tuners, phases, loops. It can be killed in each of them and started again."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import keras_dist_callbacks as kdc
import tests.support.busy_machine  # noqa: F401 - it changes this process on request
from keras_dist_callbacks.testing import KillAt

ROWS, BATCH, FITS = 30, 5, 3


class Tag(keras.layers.Layer):
    """Tells whose weights a model has: a constant of its script's fit, which a foreign backup would replace."""

    def __init__(self, tag: float, **options: Any) -> None:
        super().__init__(**options)
        self.held = self.add_weight(shape=(), initializer=keras.initializers.Constant(tag), trainable=False)

    def call(self, inputs: Any) -> Any:
        return inputs

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}  # it tells nobody else


@dataclass(frozen=True)
class Script:
    """How the fits of a script differ.

    Attributes:
        skips: It leaves out those whose result is there.
        places: A directory for all of them, or one for each; then the finished ones are kept.
        seed: Set before each fit with its number ("own"), with the same number ("same"), at the start ("once"), never.
        rows: Each fit has other ones.
        units: The size of each fit's first layer.
        rates: Each fit's learning rate.
        model: "new" for each fit, or "one" for all.
        callback: "new" for each fit, or "one" for all.
        epochs: Each fit trains one epoch, numbered on.
        keeps: The backup stays when a fit ends.
    """

    skips: bool = False
    places: str = "one"
    seed: str | None = "own"
    rows: bool = False
    units: tuple[int, ...] = (6, 6, 6)
    rates: tuple[float, ...] = (0.1, 0.1, 0.1)
    model: str = "new"
    callback: str = "new"
    epochs: bool = False
    keeps: bool = False


SCRIPTS = {
    "folds that are skipped": Script(skips=True, rows=True, seed="same"),
    "folds that are skipped, seeded each": Script(skips=True, rows=True),
    "folds that are skipped, seeded once": Script(skips=True, rows=True, seed="once"),
    "folds that are skipped, unseeded": Script(skips=True, rows=True, seed=None),
    "folds": Script(rows=True),
    "folds in several directories": Script(rows=True, places="several"),
    "a grid of sizes that is skipped": Script(skips=True, seed="same", units=(4, 6, 8)),
    "a grid of rates that is skipped": Script(skips=True, seed="same", rates=(0.1, 0.05, 0.2)),
    "a grid of rates": Script(seed="same", rates=(0.1, 0.05, 0.2)),
    "a grid of rates, unseeded": Script(seed=None, rates=(0.1, 0.05, 0.2)),
    "a tuner": Script(skips=True, seed="once", units=(4, 6, 6), rates=(0.1, 0.1, 0.2), callback="one"),
    "an unseeded tuner": Script(skips=True, seed=None, units=(4, 6, 6), rates=(0.1, 0.1, 0.2), callback="one"),
    "seeds that are skipped": Script(skips=True),
    "an ensemble": Script(seed="once"),
    "an ensemble that is skipped": Script(skips=True, seed="once"),
    "epochs": Script(seed="once", model="one", epochs=True, keeps=True),
    "epochs with one callback, deleted": Script(seed="once", model="one", epochs=True, callback="one"),
    "phases": Script(seed="once", model="one", rates=(0.1, 0.05, 0.01)),
    "new rows for one model": Script(seed="once", model="one", rows=True),
}


def model_of(script: Script, number: int) -> keras.Model:
    first = keras.layers.Dense(script.units[number], activation="relu")
    layers = [keras.Input((4,)), Tag(float(number)), first, keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def data(script: Script, number: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(ROWS, 4)).astype("float32")
    x = x[np.arange(ROWS) % FITS != number] if script.rows else x
    return x, x.sum(1, keepdims=True)


class Program:
    """The script as it runs in one process."""

    def __init__(self, directory: Path, script: Script, kill: int | None, only: int | None, *, backs_up: bool) -> None:
        self.directory, self.script, self.kill, self.only, self.backs_up = directory, script, kill, only, backs_up
        self.strategy = kdc.make_strategy()
        self.model: Any = None
        self.callbacks: dict[str, Any] = {}

    def run(self) -> None:
        if self.script.seed == "once":
            keras.utils.set_random_seed(7)
        for number in range(FITS):
            is_done = self.script.skips and (self.directory / f"result-{number}.json").exists()
            if not is_done and self.only in (None, number):
                self.train(number)

    def train(self, number: int) -> None:
        script = self.script
        if script.seed in ("own", "same"):
            keras.utils.set_random_seed(number if script.seed == "own" else 7)
        with self.strategy.scope():
            if self.model is None or script.model == "new":
                self.model = model_of(script, number)
            is_compiled = getattr(self.model, "optimizer", None) is not None
            if not is_compiled or len(set(script.rates)) > 1:
                self.model.compile(keras.optimizers.Adam(script.rates[number]), "mse")
        epochs = {"initial_epoch": number, "epochs": number + 1} if script.epochs else {"epochs": 2}
        kill = [KillAt(epoch=number if script.epochs else 1, batch=2)] if number == self.kill else []
        x, y = data(script, number)
        history = self.model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[*kill, *self.backup(number)], **epochs)
        self.note(number, history)

    def backup(self, number: int) -> list[Any]:
        if not self.backs_up:
            return []
        several = self.script.places == "several"
        place = f"{self.directory}/backup{number if several else ''}"
        keeps = self.script.keeps or several
        if place not in self.callbacks or self.script.callback == "new":
            self.callbacks[place] = kdc.BackupAndRestore(
                place, save_freq=1, delete_checkpoint=not keeps, write_options=kdc.WriteOptions(when_busy="wait")
            )
        return [self.callbacks[place]]

    def note(self, number: int, history: Any) -> None:
        result = {
            "weights": [weight.tolist() for weight in self.model.get_weights()],
            "steps": int(keras.ops.convert_to_numpy(self.model.optimizer.iterations)),
            "tag": float(keras.ops.convert_to_numpy(self.model.layers[0].held)),
            "epochs": list(history.epoch),
        }
        if kdc.advanced.Cluster.detect().is_chief:
            (self.directory / f"result-{number}.json").write_text(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("script", choices=SCRIPTS)
    parser.add_argument("--kill", type=int)
    parser.add_argument("--only", type=int)
    parser.add_argument("--plain", action="store_true", help="without a backup")
    args = parser.parse_args()
    Program(args.directory, SCRIPTS[args.script], args.kill, args.only, backs_up=not args.plain).run()


if __name__ == "__main__":
    main()

"""Run by every worker: tries each way to use a model under MultiWorkerMirroredStrategy, and prints what came."""

from __future__ import annotations

import json
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc
import tests.support.busy_machine  # noqa: F401 - it changes this process on request


def main(enabled: bool) -> None:
    strategy = kdc.make_strategy("multi_worker", cluster_options=kdc.ClusterOptions(startup_timeout=60))
    if not enabled:
        kdc.advanced.enable_multi_worker_fit()()  # makes sure, and takes it back: plain Keras
    results = {name: attempt(strategy, name) for name in ("predict", "fit", "evaluate", "train_on_batch", "numpy")}
    print("RESULTS " + json.dumps(results), flush=True)


def attempt(strategy: Any, name: str) -> Any:
    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
    x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(12).with_options(options)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="relu"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    try:
        if name == "fit":
            return model.fit(dataset, epochs=2, verbose=0, validation_data=dataset).history["loss"]
        if name == "numpy":
            return model.fit(x, y, batch_size=12, epochs=2, verbose=0, shuffle=False).history["loss"]
        if name == "evaluate":
            return model.evaluate(dataset, verbose=0)
        if name == "train_on_batch":
            return [float(v) for v in model.train_on_batch(x[:12], y[:12])]
        return model.predict(x, batch_size=12, verbose=0).shape
    except Exception as error:  # noqa: BLE001 - the probe's result
        return f"{type(error).__name__}: {str(error)[:200]}"


if __name__ == "__main__":
    main(enabled=sys.argv[1] == "enabled")

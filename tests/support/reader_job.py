"""Loads a backup into the workload's model under a strategy, and writes down what each worker has and evaluates."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import keras_dist_callbacks as kdc
from tests.support import workload

if __name__ == "__main__":
    kind, backup, result = sys.argv[1:4]
    strategy = workload.make_strategy(kind)
    with strategy.scope():
        model = workload.build_model(None)
    kdc.load_backup(backup, model)
    weights = {variable.path: variable.numpy().tolist() for variable in model.trainable_variables}
    _, held_out = workload.load()
    steps = workload.VALIDATION_ROWS // workload.BATCH
    loss, accuracy = model.evaluate(workload.batches(held_out), steps=steps, verbose=0)
    told = {"weights": weights, "iterations": int(model.optimizer.iterations.numpy()), "accuracy": accuracy}
    Path(f"{result}-worker{kdc.advanced.Cluster.detect().worker_index}.json").write_text(json.dumps(told))

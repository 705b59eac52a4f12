"""A training script for the table of resumes: one case, under one strategy, with or without a backup."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

import keras_dist_callbacks as kdc
import tests.support.busy_machine  # noqa: F401 - it changes this process on request
from keras_dist_callbacks.testing import KillAt
from tests.support.exactness_cases import ALL_CASES as CASES
from tests.support.workload import STRATEGIES, finish, make_strategy

EPOCHS = 3


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, required=True, metavar="CASE")
    parser.add_argument("--strategy", choices=STRATEGIES, default="default")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--backup-dir", help="without it no callback of this package takes part")
    parser.add_argument("--resumed", action="store_true", help="what the case changes between two runs is changed")
    parser.add_argument("--kill", type=KillAt.from_string, action="append", default=[])
    parser.add_argument("--record", help="base name: writes <record>-worker<i>.npz and .json at the end")
    return parser.parse_args(argv)


def said(restored: Any) -> dict[str, Any]:
    """What a resume says of itself."""
    return {
        "verdict": getattr(restored, "verdict", "not exact" if restored.notes else "exact"),
        "notes": list(restored.notes),
        "conditions": list(getattr(restored, "conditions", ())),
    }


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    keras.utils.set_random_seed(7)
    if args.strategy != "default":
        tf.config.experimental.enable_op_determinism()  # what one replica does next to another is else in any order
    strategy = make_strategy(args.strategy)
    case = CASES[args.case].as_resumed() if args.resumed else CASES[args.case]
    with strategy.scope():
        model = case.model()
    arguments = case.fit(model)
    callbacks = [*arguments.pop("callbacks", []), *case.callbacks(), *args.kill]
    backup = None
    if args.backup_dir:
        backup = kdc.BackupAndRestore(args.backup_dir, save_freq=1, write_options=kdc.WriteOptions(when_busy="wait"))
        callbacks.append(backup)
    history = model.fit(**arguments, epochs=args.epochs, verbose=2, callbacks=callbacks)
    if backup is not None and backup.restored is not None:
        print("RESTORED " + json.dumps(said(backup.restored)), flush=True)
    finish(args.record, model, history)


if __name__ == "__main__":
    main()

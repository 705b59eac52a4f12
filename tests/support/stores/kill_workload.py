"""A training script that a test kills while it uploads: one store, saves after every step."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")

import numpy as np

from tests.support import (
    busy_machine,  # noqa: F401 - it changes this process on request
    tiny,
)

UNITS = 1500  # some 200 kB a save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("options", type=json.loads, help="storage_options")
    parser.add_argument("--weights", type=Path, help="where the final state goes")
    arguments = parser.parse_args()
    model, steps = tiny.rich_model(UNITS), tiny.CountSteps()
    backup = arguments.url if arguments.url != "none" else None
    history = tiny.fit(model, backup, [steps], epochs=2, options={"storage_options": arguments.options})
    np.savez(arguments.weights, history=json.dumps(history.history), **tiny.state(model))
    print(f"TRAINED {len(steps.trained)}", flush=True)


if __name__ == "__main__":
    main()

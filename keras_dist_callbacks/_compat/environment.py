"""What the bits of a training depend on besides its program: versions, processors, threads, switches of TensorFlow."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_dist_callbacks._compat import rng

_INSTRUCTIONS = ("sse4", "avx", "fma", "amx", "neon", "asimd", "sve")
_SWITCHES = ("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "XLA_FLAGS", "TF_XLA_FLAGS", "NVIDIA_TF32_OVERRIDE")
_NAMES = {
    "cpu": "the CPU model",
    "cpu_instructions": "the CPU's instruction sets",
    "gpus": "the GPUs",
    "threads": "the number of CPUs or threads",
    "tf32": "TensorFloat-32 execution",
    "deterministic": "op determinism",
    "floatx": "keras.config.floatx()",
    "epsilon": "keras.config.epsilon()",
    "image_data_format": "keras.config.image_data_format()",
    "eager_functions": "tf.config.functions_run_eagerly()",
    "jit": "tf.config.optimizer.get_jit()",
    "graph_options": "tf.config.optimizer.get_experimental_options()",
    "python": "the version of Python",
    "numpy": "the version of numpy",
}
_SWITCHED = ("deterministic", "floatx", "epsilon", "image_data_format", "eager_functions", "jit", "graph_options")
_OFF = ("disable_model_pruning", "disable_meta_optimizer")
"""Options of the graph optimizer that TensorFlow lists even if no option was set."""
_ONLY_PYTHON = ("python", "numpy")
"""What the operations of TensorFlow do not depend on."""


def describe() -> dict[str, str]:
    """Returns the numerical environment of this process, as names and texts."""
    import tensorflow as tf

    model, instructions = _processor()
    devices = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details
    gpus = [str(details(device).get("device_name", device.name)) for device in devices]
    found = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "numpy": np.__version__,
        "cpu": model,
        "cpu_instructions": instructions,
        "gpus": ", ".join(gpus) or "none",
        "threads": " and ".join(map(str, _threads())),
        **switches(),
    }
    if gpus:
        found["tf32"] = str(tf.config.experimental.tensor_float_32_execution_enabled())
    return {**found, **{name: os.environ[name] for name in _SWITCHES if os.environ.get(name)}}


def switches() -> dict[str, str]:
    """Returns what a script may change while it runs; of the rarer ones those that are set."""
    import keras
    import tensorflow as tf

    options = tf.config.optimizer.get_experimental_options()
    rare = {
        "epsilon": keras.config.epsilon() not in (1e-7, None) and keras.config.epsilon(),
        "image_data_format": keras.config.image_data_format() == "channels_first" and "channels_first",
        "eager_functions": tf.config.functions_run_eagerly(),
        "jit": tf.config.optimizer.get_jit(),
        "graph_options": dict(sorted((name, value) for name, value in options.items() if value or name not in _OFF)),
    }
    return {
        "deterministic": str(rng.is_deterministic()),
        "floatx": str(keras.config.floatx()),
        **{name: str(value) for name, value in rare.items() if value},
    }


def changes_in_training(start: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Switches that differ from a description of the start, as a finding's code and detail.

    Args:
        start: What `describe` has returned then.
    """
    now = switches()
    return [("switch", _NAMES[name]) for name in _SWITCHED if now.get(name) != start.get(name)]


def unordered_sums(replicas: int, in_step: Sequence[str]) -> list[str]:
    """What TensorFlow adds up in an order that differs from run to run; nothing where operations are deterministic.

    Args:
        replicas: How many replicas train.
        in_step: What a step adds in no fixed order on several threads of a CPU.
    """
    import tensorflow as tf

    if rng.is_deterministic():
        return []
    found = [f"{replicas} replicas"] if replicas > 1 else []
    found += ["operations on a GPU"] if tf.config.list_logical_devices("GPU") else []
    return [*found, *(in_step if in_step and _threads()[0] > 1 else ())]


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Returns what differs between two environments, as a finding's code and detail.

    Args:
        before: Of the run that wrote the backup; empty if it is not known.
        now: Of this process.
    """
    return [
        (
            "python-version" if name in _ONLY_PYTHON else "environment",
            _NAMES.get(name, f"the environment variable {name}"),
            before.get(name, "not set"),
            now.get(name, "not set"),
        )
        for name in dict.fromkeys([*before, *now])
        if before and before.get(name) != now.get(name)
    ]


def _threads() -> tuple[int, int]:
    """On how many threads one operation runs, and how many operations at a time."""
    import tensorflow as tf

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threading = tf.config.threading
    return threading.get_intra_op_parallelism_threads() or cores, threading.get_inter_op_parallelism_threads() or cores


def _processor() -> tuple[str, str]:
    """Returns the CPU's model, and which of its instruction sets kernels are chosen by."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine(), ""
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return (
        fields.get("model name") or platform.machine(),
        " ".join(sorted(flag for flag in flags if flag.startswith(_INSTRUCTIONS))),
    )

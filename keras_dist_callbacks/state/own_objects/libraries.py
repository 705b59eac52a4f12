"""Which packages are libraries: those of a list, unless a file of the user's has the same name."""

from __future__ import annotations

import concurrent.futures
import csv
import functools
import io
import sys
import sysconfig
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

from keras_dist_callbacks.base import static

_LIBRARIES = """
    keras tensorflow keras_dist_callbacks numpy tensorboard ml_dtypes absl google h5py optree wrapt namex gast
    astunparse scipy sklearn pandas polars pyarrow joblib jax jaxlib torch torchvision torchdata grain
    tensorflow_datasets tensorflow_addons tensorflow_probability tensorflow_text tensorflow_hub keras_hub keras_nlp
    keras_cv keras_tuner scikeras optuna optuna_integration ray datasets transformers tokenizers tqdm rich matplotlib
    seaborn plotly bokeh IPython ipykernel traitlets ipywidgets livelossplot wandb mlflow neptune comet_ml clearml
    tensorboardX loguru structlog PIL cv2 skimage imageio albumentations imgaug imblearn nltk gensim librosa fsspec
    gcsfs s3fs adlfs boto3 botocore aiobotocore requests urllib3 httpx aiohttp multidict yarl grpc azure
    prometheus_client statsd datadog sentry_sdk slack_sdk codecarbon pynvml yaml toml msgspec pydantic attr attrs typer
    click psutil packaging typing_extensions six tenacity xxhash safetensors cloudpickle dill pytest _pytest pluggy
    hypothesis
"""
LIBRARIES = frozenset(_LIBRARIES.split())
"""Packages whose functions, classes and modules do not change while training runs."""

_OUTPUTS = """
    logging tqdm rich matplotlib seaborn plotly bokeh IPython ipywidgets livelossplot wandb mlflow neptune comet_ml
    clearml tensorboardX tensorboard loguru structlog warnings prometheus_client statsd datadog sentry_sdk slack_sdk
    codecarbon pynvml psutil _thread
    asyncio selectors socket ssl http urllib urllib3 requests httpx aiohttp boto3 botocore aiobotocore grpc azure
    google.cloud google.auth google.api_core fsspec gcsfs s3fs adlfs
"""
_OUTPUT = frozenset(_OUTPUTS.split())
"""Packages whose objects write output, measure the machine or hold connections."""

_BARS = ("keras.src.utils.progbar",)
_SYNCHRONISATION = (threading.Thread, threading.Condition, concurrent.futures.Executor)


@functools.lru_cache(maxsize=4096)
def is_library(module: str | None) -> bool:
    """Returns whether a module belongs to a library; what has no module is Python's own."""
    if not module:
        return True
    root = module.partition(".")[0]
    return (root in LIBRARIES or root in sys.stdlib_module_names) and not _is_shadowed(root)


def library_base(cls: type) -> Any:
    """Returns the first class of a library's that a class is or extends."""
    return next(base for base in cls.__mro__ if is_library(base.__module__))


def is_compiled_function(value: Any) -> bool:
    """Whether it is a function that Cython has compiled, as `numpy.random.default_rng` is; each version has a type."""
    return type(value).__module__.startswith("_cython_")


_NEVER_SHADOWED = frozenset(["keras", "tensorflow", "keras_dist_callbacks", "numpy", "builtins"])
"""Also in a checkout of their sources."""
_INSTALLED = ("site-packages", "dist-packages")


@functools.cache
def _is_shadowed(root: str) -> bool:
    """Whether a module with a library's name, such as `datasets` or `profile`, is another one that the user wrote."""
    module = sys.modules.get(root)
    if module is None or root in _NEVER_SHADOWED:
        return False
    places = [*getattr(module, "__path__", []), getattr(module, "__file__", None) or ""]
    if not places[0]:
        return False  # built into Python
    directory = Path(places[0]).resolve().parent
    standard_library = (Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
    if set(directory.parts) & set(_INSTALLED) or any(map(directory.is_relative_to, standard_library)):
        return False
    distributions = map(metadata.distribution, metadata.packages_distributions().get(root, ()))
    installed = (Path(str(found.locate_file(""))).resolve() for found in distributions)
    return directory not in installed  # as it is after `pip install --target`, say


def is_output(value: Any) -> bool:
    """Whether an object only writes output, holds a connection or orders threads: training does not depend on it."""
    if issubclass(type(value), io.IOBase):
        return not is_library(type(value).__module__) or _only_writes(value)  # what one of the user's does is not asked
    cls: Any = type(value)
    return _is_of_output(static.class_of(value)) or _is_of_output(cls)


@functools.lru_cache(maxsize=4096)
def _is_of_output(cls: Any) -> bool:
    import tensorflow as tf

    if issubclass(cls, tf.summary.SummaryWriter | type(csv.writer(io.StringIO()))):
        return True
    for base in cls.__mro__:
        if base in _SYNCHRONISATION or base.__module__ in _BARS:
            return True
        parts = base.__module__.split(".")
        if parts[0] in _OUTPUT or ".".join(parts[:2]) in _OUTPUT:
            return True
    return False


def _only_writes(file: io.IOBase) -> bool:
    try:
        return file.closed or not file.readable()
    except ValueError:
        return True

"""Which packages are libraries, by name and never by path: packages of the user's company are user code too."""

from __future__ import annotations

import csv
import io
import sys
import threading
from typing import Any

LIBRARIES = frozenset(
    [
        *("keras", "tensorflow", "keras_dist_callbacks", "numpy", "tensorboard", "ml_dtypes", "absl", "google", "h5py"),
        *(
            "optree",
            "wrapt",
            "namex",
            "gast",
            "astunparse",
            "scipy",
            "sklearn",
            "pandas",
            "polars",
            "pyarrow",
            "joblib",
        ),
        *("jax", "jaxlib", "torch", "torchvision", "torchdata", "grain", "tensorflow_datasets", "tensorflow_addons"),
        *("tensorflow_probability", "tensorflow_text", "tensorflow_hub", "keras_hub", "keras_nlp", "keras_cv"),
        *("keras_tuner", "scikeras", "optuna", "optuna_integration", "ray", "datasets", "transformers", "tokenizers"),
        *(
            "tqdm",
            "rich",
            "matplotlib",
            "seaborn",
            "plotly",
            "bokeh",
            "IPython",
            "ipykernel",
            "traitlets",
            "ipywidgets",
        ),
        *("livelossplot", "wandb", "mlflow", "neptune", "comet_ml", "clearml", "tensorboardX", "loguru", "structlog"),
        *("PIL", "cv2", "skimage", "imageio", "albumentations", "imgaug", "imblearn", "nltk", "gensim", "librosa"),
        *("fsspec", "gcsfs", "s3fs", "adlfs", "boto3", "botocore", "requests", "urllib3", "aiohttp", "yaml", "toml"),
        *("msgspec", "pydantic", "attr", "attrs", "typer", "click", "psutil", "packaging", "typing_extensions", "six"),
        *("tenacity", "xxhash", "safetensors", "cloudpickle", "dill", "pytest", "_pytest", "pluggy", "hypothesis"),
    ]
)
"""Packages whose functions, classes and modules do not change while training runs."""

_OUTPUT = frozenset(
    [
        *(
            "logging",
            "tqdm",
            "rich",
            "matplotlib",
            "seaborn",
            "plotly",
            "bokeh",
            "IPython",
            "ipywidgets",
            "livelossplot",
        ),
        *("wandb", "mlflow", "neptune", "comet_ml", "clearml", "tensorboardX", "tensorboard", "loguru", "structlog"),
        *("threading", "_thread", "warnings"),
    ]
)
"""Packages whose objects write output, or order threads: training does not depend on what they hold."""


def is_library(module: str | None) -> bool:
    """Whether a module belongs to a library; what has no module is Python's own."""
    if not module:
        return True
    root = module.partition(".")[0]
    return root in LIBRARIES or root in sys.stdlib_module_names


def is_output(value: Any) -> bool:
    """Whether an object only writes output."""
    if isinstance(value, io.IOBase):
        return _only_writes(value)
    import tensorflow as tf

    if isinstance(value, threading.local):
        return False
    roots = {base.__module__.partition(".")[0] for base in type(value).__mro__}
    return bool(roots & _OUTPUT) or isinstance(value, tf.summary.SummaryWriter | type(csv.writer(io.StringIO())))


def _only_writes(file: io.IOBase) -> bool:
    try:
        return file.closed or not file.readable()
    except ValueError:
        return True

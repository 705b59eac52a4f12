"""Which environment variables must be those of the template already, because they are read at import."""

from __future__ import annotations

import os
from collections.abc import Mapping

# What Python, TensorFlow, Keras and whatever they import were seen to read while they were imported (getenv(3) and
# os.environ were both traced), by families: a family's members differ between versions. Better one too many, which
# costs a template, than one too few, which changes a training. All others are set in the worker after the fork.
_READ_AT_IMPORT = (
    *("PYTHON", "_PYTHON", "LD_", "LANG", "LC_", "MALLOC_", "GLIBC_", "HOME", "XDG_", "COVERAGE_"),
    *("ABSL_", "KERAS_", "TF_", "TF2_", "TPU_", "XLA_", "JAX_", "TORCH_", "CUDA_", "NVIDIA_", "ROCM_", "TEST_"),
    *("GRPC_", "GCS_", "PROTOCOL_BUFFERS_", "TEMPORARILY_DISABLE_PROTOBUF_", "ENABLE_RUNTIME_", "DISABLE_HOST_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "DNNL_", "ONEDNN_", "OPENBLAS_", "GOTO_", "BLIS_", "NVPL_", "VECLIB_"),
    *("NPY_", "NUMPY_", "NUMEXPR_", "SCIPY_", "SKLEARN_", "JOBLIB_", "LOKY_", "PILLOW_", "HDF5_", "WRAPT_"),
    *("ACC_", "GFORTRAN_", "LLVM_", "FSSPEC_", "GCSFS_", "OPENSSL_"),
)
_NO_GPU = ("-1", "")


def read_at_import(env: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a template must share with its workers."""
    return {name: env[name] for name in sorted(env) if name != "TF_CONFIG" and name.startswith(_READ_AT_IMPORT)}


def is_cpu_only(env: Mapping[str, str]) -> bool:
    """Whether no GPU can be seen: a CUDA driver does not survive a fork."""
    return env.get("CUDA_VISIBLE_DEVICES") in _NO_GPU


def has_relative_path(env: Mapping[str, str]) -> bool:
    """Whether modules are searched below the directory in which the process starts."""
    path = env.get("PYTHONPATH", "")
    return bool(path) and not all(map(os.path.isabs, path.split(os.pathsep)))

"""What the measurements ran on, without names of hosts or paths."""

from __future__ import annotations

import mmap
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import xxhash

_CHUNK = 4 * 2**20
_PROBES = 3
_PACKAGES = ("tensorflow", "keras", "numpy", "orbax-checkpoint", "jax", "h5py", "safetensors", "keras-dist-callbacks")


def describe(scratch: Path) -> dict[str, str]:
    """Processor, memory, file system, operating system and versions."""
    return {
        "Processor": f"{_processor()}, {os.cpu_count()} CPUs",
        "Memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "File system": _file_system(scratch),
        "System": f"{platform.system()} {platform.release().split('-')[0]}",
        "Python": platform.python_version(),
        "Packages": ", ".join(f"{name} {_version(name)}" for name in _PACKAGES),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"  # most tables need neither Orbax nor JAX


def measured_code() -> str:
    """A digest of this package's sources: tables that were measured on different code must be told apart."""
    import keras_dist_callbacks

    root = Path(keras_dist_callbacks.__file__).parent
    digest = xxhash.xxh3_64()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root)}:".encode() + file.read_bytes())
    return digest.hexdigest()


def direct_speed(path: Path, size: int) -> float | None:
    """Bytes per second around the page cache from aligned memory, flushed; None where the file system refuses."""
    memory = mmap.mmap(-1, _CHUNK)
    memory.write(np.random.default_rng(0).bytes(_CHUNK))
    seconds = []
    for _ in range(_PROBES):
        began = time.perf_counter()
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
            for start in range(0, size, _CHUNK):
                os.pwrite(file, memory, start)
        except (OSError, AttributeError):
            return None
        os.fsync(file)
        os.close(file)
        seconds.append(time.perf_counter() - began)
        path.unlink()
    return float(size / np.median(seconds))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _file_system(directory: Path) -> str:
    """The type of the file system that holds `directory`."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    resolved = directory.resolve()
    holding = [m for m in mounts if resolved.is_relative_to(m[1])]
    return max(holding, key=lambda m: len(m[1]))[2] if holding else "unknown"

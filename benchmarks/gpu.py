"""`make gpu`: one kill and resume per strategy on the GPUs of this machine, and what a snapshot costs there.

Each case is run uninterrupted, and again with a worker that is killed by SIGKILL and started again; the ends are
compared bit by bit. The cases are the strategies that apply (one device, Mirrored over all GPUs, MultiWorkerMirrored
with two workers on this host), with and without op determinism, with and without mixed precision. A resume that calls
itself exact and ends differently is a failure; where the verdict names a reason, a difference is shown and is none.

Without a GPU, logical CPU devices take their place: that shows that the program runs, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine

STRATEGIES = ("one device", "mirrored", "multi worker")
_WORKERS = {"multi worker": 2}
_EPOCHS, _STEPS, _SAVE_FREQ = 3, 20, 4
_KILL = "phase=train_batch_begin,epoch=1,batch=10,worker={worker}"  # two steps after a backup
_TIMED_FROM = 3  # at the snapshots before, memory is looked at, which takes time
_TIMEOUT_SECONDS = 1800.0
_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # in which nvidia-smi counts
_HEADERS = (
    "strategy", "replicas", "op determinism", "mixed precision", "ms of a snapshot", "free MB before", "after",
    "verdict of the resume", "the end",
)  # fmt: skip
_PROBE = """
import json
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
names = [tf.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in gpus]
build = tf.sysconfig.get_build_info()
cuda = [f"{key.partition('_')[0]} {build[key]}" for key in ("cuda_version", "cudnn_version") if key in build]
print(json.dumps([names, ", ".join([tf.__version__, *cuda])]))
"""


@dataclass(frozen=True)
class Case:
    """One row: a strategy, and whether op determinism and mixed precision are enabled."""

    strategy: str
    determinism: bool
    mixed: bool

    @property
    def workers(self) -> int:
        """How many processes train."""
        return _WORKERS.get(self.strategy, 1)

    @property
    def half(self) -> str:
        """The type of mixed precision: with float16, Keras 3 hangs under MultiWorkerMirrored."""
        return "bfloat16" if self.workers > 1 else "float16"


@dataclass(frozen=True)
class Devices:
    """What the cases run on.

    Attributes:
        gpus: Names of the GPUs; empty without any.
        packages: TensorFlow, and what it was built with.
    """

    gpus: tuple[str, ...]
    packages: str

    def environment(self) -> dict[str, str]:
        """For all workers; each chooses among what it sees."""
        if not self.gpus:
            return {}
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(len(self.gpus)))))
        threads = dict.fromkeys(("TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS"), "0")
        return {"CUDA_VISIBLE_DEVICES": seen, **_ORDER, **threads}


@dataclass(frozen=True)
class Row:
    """What a case has shown.

    Attributes:
        case: The case.
        replicas: Of all workers.
        milliseconds: By which a step takes longer when a snapshot follows it, in the median; None without a figure.
        free_before: Bytes of device memory that were free before a snapshot, on the device with the least; None if the
            system does not say.
        free_after: The same after it.
        verdict: Of the resume.
        reasons: Why it is not exact, or on what that depends.
        differences: Between the uninterrupted run and the killed one.
        failure: Why there is nothing to show.
    """

    case: Case
    replicas: int = 0
    milliseconds: float | None = None
    free_before: int | None = None
    free_after: int | None = None
    verdict: str = ""
    reasons: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    failure: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether the package has promised what did not come true."""
        return bool(self.failure) or (self.verdict == "exact" and bool(self.differences))


def cases(devices: Devices, strategies: Sequence[str]) -> list[Case]:
    """Those that apply to this machine: one GPU alone cannot be mirrored."""
    fit = [name for name in strategies if not (name == "mirrored" and len(devices.gpus) == 1)]
    return [Case(*case) for case in itertools.product(fit, (True, False), (False, True))]


def find_devices() -> Devices:
    """Asks TensorFlow, in a process that ends: this one is to hold no device."""
    env = {**os.environ, **_ORDER}
    done = subprocess.run([sys.executable, "-c", _PROBE], env=env, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
    names, packages = json.loads(done.stdout.splitlines()[-1])
    return Devices(tuple(names), packages)


# --- a worker


def free_memory(gpus: Sequence[int]) -> int | None:
    """Bytes that are free on the device with the least; of the machine without a GPU."""
    try:
        if not gpus:
            lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
        names = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        of_mine = ["-i", ",".join(names[gpu] for gpu in gpus)]
        command = ["nvidia-smi", *of_mine, "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()  # noqa: S603
        return min(map(int, found)) * 2**20
    except (OSError, ValueError, LookupError, StopIteration, subprocess.CalledProcessError):
        return None


def train(directory: Path, case: Case, gpus: int, *, kill: str | None, is_measured: bool) -> None:
    """What each process runs."""
    import keras
    import tensorflow as tf

    import keras_dist_callbacks as kdc
    from keras_dist_callbacks.advanced import Cluster
    from keras_dist_callbacks.testing import KillAt, record_run

    index = max(0, Cluster.detect().worker_index)
    mine = _take_devices(case, gpus, index)
    keras.utils.set_random_seed(1)
    if case.determinism:
        tf.config.experimental.enable_op_determinism()
    if case.mixed:
        keras.mixed_precision.set_global_policy(f"mixed_{case.half}")
    strategy = _strategy(case, gpus)
    with strategy.scope():
        model = _model()
    backup = kdc.BackupAndRestore(str(directory / "backup"), save_freq=_SAVE_FREQ, delete_checkpoint=False)
    meters = [_meter(mine)] if is_measured else []  # whose state would belong to the backups of the killed run
    history = model.fit(
        _rows(strategy.num_replicas_in_sync),
        epochs=_EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[backup, *meters, *([KillAt.from_string(kill)] if kill else [])],
    )
    record_run(directory / f"final-worker{index}", model, history)
    report: dict[str, Any] = {"replicas": strategy.num_replicas_in_sync}
    if (restored := backup.restored) is not None:
        report |= {"verdict": restored.verdict, "reasons": [*restored.notes, *restored.conditions]}
    for meter in meters:
        report |= meter.found()
    (directory / f"report-worker{index}.json").write_text(json.dumps(report), encoding="utf-8")


def _take_devices(case: Case, gpus: int, index: int) -> list[int]:
    """Makes those visible that a worker is to use; returns the numbers of its GPUs."""
    import tensorflow as tf

    if gpus == 0:
        if case.strategy == "mirrored":
            cpu = tf.config.list_physical_devices("CPU")[0]
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        return []
    share = 1 if case.strategy == "one device" else max(1, gpus // case.workers)
    first = index * share % gpus
    mine = list(range(first, first + share))
    every = tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices([every[number] for number in mine], "GPU")
    for number in mine:  # what is free is to mean something, and two workers may share a device
        tf.config.experimental.set_memory_growth(every[number], True)
    return mine


def _strategy(case: Case, gpus: int) -> Any:
    import tensorflow as tf

    import keras_dist_callbacks as kdc

    if case.strategy == "one device":
        return kdc.make_strategy("default")
    if case.strategy == "mirrored":
        return kdc.make_strategy("mirrored", devices=None if gpus else ["CPU:0", "CPU:1"])
    ring = tf.distribute.experimental.CommunicationImplementation.RING  # NCCL does not share a device
    shared = tf.distribute.experimental.CommunicationOptions(implementation=ring) if gpus == 1 else None
    return kdc.make_strategy("multi_worker", communication_options=shared)


def _model() -> Any:
    """A small network with what is random, normalized, and saved beside the weights."""
    import keras

    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            keras.layers.Conv2D(32, 3, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, activation="softmax", dtype="float32"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def _rows(replicas: int) -> Any:
    import numpy as np
    import tensorflow as tf

    batch = 16 * replicas
    random = np.random.default_rng(1)
    x = random.normal(size=(batch * _STEPS, 16, 16, 3)).astype("float32")
    y = random.integers(0, 10, size=len(x))
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)  # a shuffle would be a condition
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)


def _meter(gpus: Sequence[int]) -> Any:
    import keras

    class Meter(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
        """The time between two steps, which a snapshot may take a part of, and memory around the first snapshots."""

        def __init__(self) -> None:
            super().__init__()
            self.step = self.ended = self.snapshots = 0
            self.gaps: dict[bool, list[float]] = {True: [], False: []}
            self.free: list[tuple[int | None, int | None]] = []
            self.before: int | None = None

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """The step is done on the device when its loss is at hand."""
            float(logs["loss"])
            self.step += 1
            if self.is_saved and self.snapshots < _TIMED_FROM:
                self.before = free_memory(gpus)
            self.ended = time.perf_counter_ns()

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            """The snapshot is taken, and its host copies are made; the rest is written meanwhile."""
            gap = (time.perf_counter_ns() - self.ended) / 1e6
            if batch == 0:
                return
            if self.is_saved and self.snapshots < _TIMED_FROM:
                self.free.append((self.before, free_memory(gpus)))
            else:
                self.gaps[self.is_saved].append(gap)
            self.snapshots += self.is_saved

        @property
        def is_saved(self) -> bool:
            """Whether a backup is due after the last step."""
            return self.step % _SAVE_FREQ == 0

        def found(self) -> dict[str, Any]:
            """What was measured."""
            with_one, without = self.gaps[True], self.gaps[False]
            more = statistics.median(with_one) - statistics.median(without) if with_one and without else None
            before, after = self.free[-1] if self.free else (None, None)
            return {"milliseconds": more, "free_before": before, "free_after": after}

    return Meter()


# --- all cases


def measure(case: Case, devices: Devices, directory: Path) -> Row:
    """Runs a case uninterrupted and killed, and compares."""
    from keras_dist_callbacks import KdcError
    from keras_dist_callbacks.testing import compare_runs

    try:
        _run(case, devices, directory / "plain", ["--measured"])
        _run(case, devices, directory / "killed", ["--kill", _KILL.format(worker=case.workers - 1)], restarts=1)
    except (KdcError, RuntimeError) as error:
        print(error, file=sys.stderr)  # with the logs
        return Row(case, failure=str(error).splitlines()[0])
    plain, killed = (json.loads((directory / part / "report-worker0.json").read_text()) for part in ("plain", "killed"))
    differences = [
        line
        for worker in range(case.workers)
        for line in compare_runs(*(directory / part / f"final-worker{worker}" for part in ("plain", "killed")))
    ]
    return Row(case, **{**plain, **killed}, differences=tuple(differences))


def _run(case: Case, devices: Devices, directory: Path, words: Sequence[str], *, restarts: int = 0) -> None:
    """One training; the words are for its first start.

    Raises:
        RuntimeError: It did not end, or was not started again as often as it should have been.
    """
    from keras_dist_callbacks.testing import LocalCluster, run_until_done

    directory.mkdir(parents=True)
    given = ["--worker", str(directory), json.dumps(asdict(case)), str(len(devices.gpus))]
    command = [sys.executable, "-m", "benchmarks.gpu", *given]
    preload = not devices.gpus
    with LocalCluster(command, case.workers, directory / "logs", devices.environment(), preload=preload) as cluster:
        attempts = run_until_done(cluster, restarts, _TIMEOUT_SECONDS, extra_args=[words])
        if not attempts[-1].succeeded or len(attempts) != restarts + 1:
            codes = [list(attempt.returncodes) for attempt in attempts]
            raise RuntimeError(f"the workers of {len(attempts)} starts ended with {codes}\n{cluster.tails()}")


def table(rows: Sequence[Row]) -> str:
    """The rows as a table of Markdown."""
    lines = [_HEADERS, ["---"] * len(_HEADERS), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(row: Row) -> list[str]:
    case = row.case
    end = "failed" if row.failure else f"{len(row.differences)} differences" if row.differences else "bit-identical"
    return [
        f"{case.strategy} ({case.workers} workers)" if case.workers > 1 else case.strategy,
        str(row.replicas or "-"),
        "yes" if case.determinism else "no",
        case.half if case.mixed else "no",
        "-" if row.milliseconds is None else f"{row.milliseconds:.1f}",
        *("-" if free is None else f"{free / 1e6:,.0f}" for free in (row.free_before, row.free_after)),
        row.verdict or "-",
        end,
    ]


def page(rows: Sequence[Row], devices: Devices, about: Mapping[str, str]) -> str:
    """What is printed, and written where it is asked for."""
    places = " and ".join(sorted(set(devices.gpus))) or "none"
    smoke = "" if devices.gpus else " Logical CPU devices took their place: these are no figures of GPUs."
    facts = "\n".join(f"- {name}: {value}" for name, value in {**about, "TensorFlow": devices.packages}.items())
    notes = [
        f"- {_name(row.case)}: {row.failure or row.differences[0]}" for row in rows if row.failure or row.differences
    ]
    notes += sorted({f"- {row.verdict}: {reason}" for row in rows for reason in row.reasons})
    return "\n".join(
        [
            "# Kill and resume on GPUs",
            "",
            f"GPUs: {len(devices.gpus)}, {places}.{smoke}",
            "",
            table(rows),
            "",
            *([*notes, ""] if notes else []),
            facts,
            "",
        ]
    )


def _name(case: Case) -> str:
    on = [name for name, enabled in (("op determinism", case.determinism), ("mixed precision", case.mixed)) if enabled]
    return ", ".join([case.strategy, *on])


def _measured(found: Sequence[Case], devices: Devices, scratch: Path) -> Iterator[Row]:
    for number, case in enumerate(found, start=1):
        print(f"{number} of {len(found)}: {_name(case)}", flush=True)
        yield measure(case, devices, scratch / str(number))


def main(given: Sequence[str] | None = None) -> int:
    """Returns 1 if a resume was not what it called itself, or a case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the page into this Markdown file")
    parser.add_argument("--strategy", action="append", choices=STRATEGIES, help="only this one; may be repeated")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--kill", help=argparse.SUPPRESS)
    parser.add_argument("--measured", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if options.worker:
        directory, case, gpus = options.worker
        of = Path(directory), Case(**json.loads(case)), int(gpus)
        train(*of, kill=options.kill, is_measured=options.measured)
        return 0
    devices = find_devices()
    with tempfile.TemporaryDirectory(prefix="kdc-gpu-") as scratch:
        rows = list(_measured(cases(devices, options.strategy or STRATEGIES), devices, Path(scratch)))
        text = page(rows, devices, machine.describe(Path(scratch)))
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    return int(any(row.is_wrong for row in rows))


if __name__ == "__main__":
    sys.exit(main())

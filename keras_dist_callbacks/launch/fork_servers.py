"""Workers that are forked from a template which has done their imports already.

This process starts one template for each list of modules and environment, shared by all clusters. A template costs as
much memory as a worker before its first batch, and is shared with its workers; see `fork_server.py` for what it does.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_dist_callbacks.errors import ClusterError
from keras_dist_callbacks.launch.fork_child import program
from keras_dist_callbacks.launch.processes import Process, WorkerProcess, note_end
from keras_dist_callbacks.process import Shared, shared

# Variables that must be those of the template already. They are what Python, TensorFlow, Keras and whatever they import
# were seen to read while they were imported (getenv(3) and os.environ were both traced), by families: the members of
# one differ between versions. Better one too many, which costs a template, than one too few, which changes a
# training. All others are set in the worker after the fork.
_READ_AT_IMPORT = (
    *("PYTHON", "_PYTHON", "LD_", "LANG", "LC_", "MALLOC_", "GLIBC_", "HOME", "XDG_", "COVERAGE_"),
    *("ABSL_", "KERAS_", "TF_", "TF2_", "TPU_", "XLA_", "JAX_", "TORCH_", "CUDA_", "NVIDIA_", "ROCM_", "TEST_"),
    *("GRPC_", "GCS_", "PROTOCOL_BUFFERS_", "TEMPORARILY_DISABLE_PROTOBUF_", "ENABLE_RUNTIME_", "DISABLE_HOST_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "DNNL_", "ONEDNN_", "OPENBLAS_", "GOTO_", "BLIS_", "NVPL_", "VECLIB_"),
    *("NPY_", "NUMPY_", "NUMEXPR_", "SCIPY_", "SKLEARN_", "JOBLIB_", "LOKY_", "PILLOW_", "HDF5_", "WRAPT_"),
    *("ACC_", "GFORTRAN_", "LLVM_", "FSSPEC_", "GCSFS_", "OPENSSL_"),
)
_NO_GPU = ("-1", "")
_BYTES = 65_536
_IMPORT_SECONDS = 300.0
_ANSWER_SECONDS = 60.0
_END_SECONDS = 10.0
_MOST_IDLE = 3
# The directory of neither this file nor the owner may be where modules are found: a worker has its own.
_ENTRY = (
    "import sys; at_start = frozenset(sys.modules); sys.flags.safe_path or sys.path.pop(0); "
    "from keras_dist_callbacks.launch.fork_server import main; main(at_start)"
)


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


class Template:
    """The owner's side of one template."""

    def __init__(self, modules: Sequence[str], env: Mapping[str, str]) -> None:
        self.modules = tuple(modules)
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._pids: dict[int, int] = {}  # of workers that have not ended
        self._codes: dict[int, int] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self._rest = b""
        self._socket, other = socket.socketpair()
        with other, tempfile.TemporaryFile() as said:  # what imports print belongs into the workers' logs
            self._process = subprocess.Popen(  # noqa: S603 - our own code
                [sys.executable, "-c", _ENTRY, str(other.fileno()), *modules],
                env={name: value for name, value in env.items() if name != "TF_CONFIG"},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                pass_fds=[other.fileno()],
                start_new_session=True,
            )
        self.alive = True
        self.ready = False
        try:
            self._wait(lambda: self.ready, _IMPORT_SECONDS)
        finally:
            if not self.ready:
                self._lose()

    @property
    def pid(self) -> int:
        """The template's process id."""
        return self._process.pid

    @property
    def idle(self) -> bool:
        """Whether none of its workers runs."""
        with self._lock:
            self._take_all()
            return not self._pids

    def start(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> tuple[int, int] | None:
        """Forks a worker.

        Returns:
            The worker's number, for the other methods, and its process id; None if the template cannot do
            this one.

        Raises:
            ClusterError: What was preloaded makes forking unsafe.
        """
        with self._lock:
            number = next(self._numbers)
            order = {"command": list(command), "env": dict(env), "cwd": os.getcwd(), "log": os.path.abspath(log)}  # noqa: PTH100, PTH109
            told = self._ask(number, do="start", **order)
            if "refused" in told:
                raise ClusterError(
                    f"the template of preloaded workers (process {self.pid}, {', '.join(self.modules)}) cannot be "
                    f"forked: {told['refused']}; start these workers without preload=True"
                )
            if "pid" not in told:
                return None
            if number not in self._codes:  # it may have ended already
                self._pids[number] = told["pid"]
            if not self.alive:  # and so may the template
                self._forget_workers()
            return number, told["pid"]

    def code(self, number: int) -> int | None:
        """A worker's return code, negative for a signal; None while it runs."""
        with self._lock:
            self._take_all()
            return self._codes.get(number)

    def send(self, number: int, sig: int) -> None:
        """Sends a signal to a worker; nothing happens if it has ended."""
        with self._lock:
            if self.code(number) is None:
                told = self._ask(next(self._numbers), do="signal", worker=number, signal=int(sig))
                if "errno" in told:
                    raise OSError(told["errno"], told["why"])

    def end(self, number: int) -> None:
        """Kills a worker's process group and waits for the worker's end; nothing happens if it has ended."""
        with self._lock:
            if self.code(number) is None:
                self._ask(next(self._numbers), do="end", worker=number)

    def close(self) -> None:
        """Ends the template and its workers; harmless if it has ended."""
        with self._lock:
            if self.alive:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_END_SECONDS)
                self._lose()

    def forget(self) -> None:
        """For a fork of the owner, which must neither end the workers nor keep the template from seeing the end."""
        self._socket.close()
        self.alive = False

    def _ask(self, number: int, **order: Any) -> dict[str, Any]:
        """Sends an order and waits for the answer; it is empty if the template is gone.

        Answers have numbers, because the end of a forgotten worker can come between an order and its answer:
        the garbage collector calls for it.
        """
        try:
            if self.alive:
                self._socket.sendall(json.dumps({"number": number, **order}).encode() + b"\n")
        except OSError:
            self._lose()
        self._wait(lambda: number in self._answers, _ANSWER_SECONDS)
        if number not in self._answers:
            self._lose()
        return self._answers.pop(number, {})

    def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.alive and not condition() and (left := deadline - time.monotonic()) > 0:
            self._take(left)

    def _take_all(self) -> None:
        while self.alive and self._take(0):
            pass

    def _take(self, seconds: float) -> bool:
        """Takes what the template has said within some seconds; whether that was anything."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        if not waiting.poll(seconds * 1000):
            return False
        try:
            received = self._socket.recv(_BYTES)
        except ConnectionError:
            received = b""
        if not received:
            self._lose()
            return False
        *lines, self._rest = (self._rest + received).split(b"\n")
        for message in map(json.loads, lines):
            if "answers" in message:
                self._answers[message["answers"]] = message
            elif "ended" in message:
                self._pids.pop(message["ended"], None)
                self._codes[message["ended"]] = message["code"]
            else:
                self.ready = message["ready"]
        return True

    def _lose(self) -> None:
        """The template is gone: so are its workers, by the kernel's doing, and now what they had started."""
        if not self.alive:
            return
        self.alive = False
        self._process.kill()
        self._process.wait()  # afterwards the kernel has killed the workers
        self._socket.close()
        self._forget_workers()

    def _forget_workers(self) -> None:
        for number, pid in self._pids.items():
            # nobody holds these ids any more; a group that has members keeps its id, and others are not reused so soon
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self._codes[number] = -signal.SIGKILL
        self._pids.clear()


class Templates(Shared):
    """Finds the template for an environment, or starts it; keeps few that nobody uses."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._known: dict[tuple[object, ...], Template] = {}  # the one used last at the end

    def get(self, modules: Sequence[str], env: Mapping[str, str]) -> Template | None:
        """A living template; None if the modules cannot be imported in this environment."""
        where = os.getcwd() if has_relative_path(env) else ""  # noqa: PTH109
        key = (sys.executable, *modules, where, *read_at_import(env).items())
        with self._lock:
            template = self._known.pop(key, None)
            if template is None or (template.ready and not template.alive):
                self._make_room()
                template = Template(modules, env)
            self._known[key] = template
            return template if template.ready else None

    def close(self) -> None:
        """Ends all templates and their workers."""
        with self._lock:
            for template in self._known.values():
                template.close()
            self._known.clear()

    def in_child(self) -> Templates:
        """A fork of the owner has none."""
        for template in self._known.values():
            template.forget()
        return Templates()

    def _make_room(self) -> None:
        living = [template for template in self._known.values() if template.alive]
        for template in [template for template in living if template.idle][: max(0, len(living) - _MOST_IDLE + 1)]:
            template.close()


def templates() -> Templates:
    """Those of this process."""
    return shared(Templates)


atexit.register(lambda: templates().close())


class PreloadedProcess:
    """A worker of a template; to its owner it is what a `WorkerProcess` is."""

    def __init__(self, template: Template, number: int, pid: int, log: Path) -> None:
        self.log = log
        self.pid = pid
        self._template = template
        self._number = number
        self._last_resort = weakref.finalize(self, template.end, number)

    def poll(self) -> int | None:
        """The return code, negative for a signal; None while it runs."""
        return self._template.code(self._number)

    def send(self, sig: int) -> None:
        """Sends a signal to the process, not to its children, as a scheduler does."""
        self._template.send(self._number, sig)

    def end(self, note: str = "") -> None:
        """Kills the whole group, if it still runs, and says why at the end of the log."""
        if self.poll() is None:
            self._last_resort()
            note_end(self.log, note)


def start_process(command: Sequence[str], env: Mapping[str, str], log: Path, preload: Sequence[str] = ()) -> Process:
    """Starts a worker: from a template if that is possible and wanted, as a fresh process otherwise.

    Args:
        command: Program and arguments.
        env: The whole environment.
        log: The log file; an older one is overwritten.
        preload: Modules that the template imports; without any the process is a fresh one.

    Raises:
        ClusterError: What was preloaded makes forking unsafe.
        ConfigError: The program cannot be started.
    """
    command = [os.fspath(part) for part in command]
    if preload and _is_possible(command, env) and (template := templates().get(preload, env)) is not None:
        log.open("wb").close()
        started = template.start(command, env, log)
        if started is not None:
            return PreloadedProcess(template, *started, log)
    return WorkerProcess(command, env, log)


def _is_possible(command: Sequence[str], env: Mapping[str, str]) -> bool:
    if not all(isinstance(part, str) for part in command):  # bytes: Popen knows them, JSON does not
        return False
    on_linux = sys.platform == "linux" and hasattr(os, "pidfd_open")
    return on_linux and command[0] == sys.executable and program(command) is not None and is_cpu_only(env)

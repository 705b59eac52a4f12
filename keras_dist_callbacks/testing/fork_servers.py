"""Workers that are forked from a process which has done their imports already.

This process starts one fork server for each list of modules and environment, shared by all clusters. A server costs as
much memory as a worker before its first batch, and is shared with its workers; see `fork_server.py` for what it does.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any

from keras_dist_callbacks.base.errors import ClusterError
from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.launch.processes import WorkerProcess, note_end
from keras_dist_callbacks.testing.fork_child import program
from keras_dist_callbacks.testing.fork_server import send

# Variables that must be those of the server already. They are what Python, TensorFlow, Keras and whatever they import
# were seen to read while they were imported (getenv(3) and os.environ were both traced), by families: the members of
# one differ between versions. Better one too many, which costs a server, than one too few, which changes a
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
_IMPORT_SECONDS = 300.0
_ANSWER_SECONDS = 60.0
_END_SECONDS = 10.0
_MOST_IDLE = 3
# The directory of neither this file nor the owner may be where modules are found: a worker has its own.
_ENTRY = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); "
    "from keras_dist_callbacks.testing.fork_server import main; main()"
)


def read_at_import(env: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a server must share with its workers."""
    return {name: env[name] for name in sorted(env) if name != "TF_CONFIG" and name.startswith(_READ_AT_IMPORT)}


def is_cpu_only(env: Mapping[str, str]) -> bool:
    """Whether no GPU is visible: a CUDA driver does not survive a fork."""
    return env.get("CUDA_VISIBLE_DEVICES") in _NO_GPU


def has_relative_path(env: Mapping[str, str]) -> bool:
    """Whether modules are searched below the directory in which the process starts."""
    path = env.get("PYTHONPATH", "")
    return bool(path) and not all(map(os.path.isabs, path.split(os.pathsep)))


class ForkServer:
    """The owner's side of one fork server, which imports its modules in the background.

    Attributes:
        ready: Whether it was seen to have imported them.
    """

    ready = False

    def __init__(self, modules: Sequence[str], env: Mapping[str, str]) -> None:
        self.modules = tuple(modules)
        self._lock = threading.Lock()
        self._workers: weakref.WeakSet[PreloadedProcess] = weakref.WeakSet()
        self._pipe, other = Pipe()
        with other:
            self._process = subprocess.Popen(  # noqa: S603 - our own code
                [sys.executable, "-c", _ENTRY, str(other.fileno()), *modules],
                env={name: value for name, value in env.items() if name != "TF_CONFIG"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                start_new_session=True,
            )

    def wait_until_ready(self) -> bool:
        """Waits until it can start workers; whether it can."""
        self.ready = "ready" in receive(self._pipe, _IMPORT_SECONDS)
        return self.ready

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can start workers."""
        return self._process.poll() is None

    @property
    def idle(self) -> bool:
        """Whether none of its workers runs."""
        return all(worker.poll() is not None for worker in list(self._workers))

    def start(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> PreloadedProcess | None:
        """Forks a worker; None if the server has ended.

        Raises:
            ClusterError: What was preloaded makes forking unsafe.
        """
        ours, theirs = Pipe()
        with theirs, self._lock:
            order = {"command": list(command), "env": dict(env), "cwd": os.getcwd(), "log": os.path.abspath(log)}  # noqa: PTH100, PTH109
            send(self._pipe, **order)
            with contextlib.suppress(ConnectionError):
                send_handle(self._pipe, theirs.fileno(), None)
        answer = receive(ours, _ANSWER_SECONDS)
        if answer.get("refused"):
            raise ClusterError(
                f"the fork server (process {self.pid}, {', '.join(self.modules)}) cannot be forked: {answer['refused']}"
                "; start these workers without preload=True"
            )
        if "pid" not in answer:
            return None
        started = PreloadedProcess(self, answer["pid"], recv_handle(ours), ours, log)
        self._workers.add(started)
        return started

    def close(self) -> None:
        """Ends the server and its workers; harmless if it has ended."""
        self._pipe.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """For a fork of the owner, which must not keep the server from seeing the owner's end."""
        self._pipe.close()


class ForkServers(Shared):
    """Finds the fork server for an environment, or starts it; keeps few that are idle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[object, ...], ForkServer] = {}  # the one used last at the end

    def get(self, modules: Sequence[str], env: Mapping[str, str]) -> ForkServer | None:
        """A living server; None if the modules cannot be imported in this environment."""
        where = os.getcwd() if has_relative_path(env) else ""  # noqa: PTH109
        key = (sys.executable, *modules, where, *read_at_import(env).items())
        with self._lock:
            server = self._known.pop(key, None)
            if server is None or (server.ready and not server.alive):
                self._make_room()
                server = ForkServer(modules, env)
                if not server.wait_until_ready():
                    server.close()
            self._known[key] = server
            return server if server.ready else None

    def close(self) -> None:
        """Ends all servers and their workers."""
        with self._lock:
            for server in self._known.values():
                server.close()
            self._known.clear()

    def in_child(self) -> ForkServers:
        """A fork of the owner has none."""
        for server in self._known.values():
            server.forget()
        return ForkServers()

    def _make_room(self) -> None:
        living = [server for server in self._known.values() if server.alive]
        for server in [server for server in living if server.idle][: max(0, len(living) - _MOST_IDLE + 1)]:
            server.close()


def fork_servers() -> ForkServers:
    """Those of this process."""
    return shared(ForkServers)


atexit.register(lambda: fork_servers().close())


class PreloadedProcess:
    """A worker of a fork server; to its owner it is what a `WorkerProcess` is. The server kills it with the pipe."""

    def __init__(self, server: ForkServer, pid: int, pidfd: int, pipe: Connection, log: Path) -> None:
        self.server = server
        self.pid = pid
        self.log = log
        self._pipe = pipe
        self._pidfd = pidfd
        weakref.finalize(self, os.close, pidfd)
        self._code: int | None = None

    @property
    def end_descriptor(self) -> int:
        """A file descriptor that can be read once the process has ended; the return code follows at once."""
        return self._pidfd

    def poll(self) -> int | None:
        """The return code, negative for a signal; None while it runs."""
        if self._code is None and self._pipe.poll():
            self._note_end(0)
        return self._code

    def send(self, sig: int) -> None:
        """Sends a signal to the process, not to its children, as a scheduler does."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, sig)

    def end(self, note: str = "") -> None:
        """Kills the entire group, if it still runs, and says why at the end of the log."""
        if self.poll() is None:
            send(self._pipe, end=True)
            self._note_end(_ANSWER_SECONDS)
            note_end(self.log, note)

    def _note_end(self, seconds: float) -> None:
        answer = receive(self._pipe, seconds)
        self._code = answer.get("code", -signal.SIGKILL)
        if not answer:  # The kernel has killed the worker with the server. Its group keeps its id while it has members.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._pipe.close()


Process = WorkerProcess | PreloadedProcess


def receive(pipe: Connection, seconds: float) -> dict[str, Any]:
    """What the other end says within some seconds; nothing if it is closed."""
    try:
        found: dict[str, Any] = json.loads(pipe.recv_bytes()) if pipe.poll(seconds) else {}
    except (EOFError, ConnectionError):
        return {}
    return found


def start_process(command: Sequence[str], env: Mapping[str, str], log: Path, preload: Sequence[str] = ()) -> Process:
    """Starts a worker: from a fork server if that is possible and wanted, as a fresh process otherwise.

    Args:
        command: Program and arguments.
        env: The complete environment.
        log: The log file; an older one is overwritten.
        preload: Modules that the server imports; without any the process is a fresh one.

    Raises:
        ClusterError: What was preloaded makes forking unsafe.
        ConfigError: The program cannot be started.
    """
    command = [os.fspath(part) for part in command]
    if preload and _can_be_forked(command, env) and (server := fork_servers().get(preload, env)) is not None:
        log.open("wb").close()
        started = server.start(command, env, log)
        if started is not None:
            return started
    return WorkerProcess(command, env, log)


def _can_be_forked(command: Sequence[str], env: Mapping[str, str]) -> bool:
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    are_texts = all(isinstance(part, str) for part in command)  # bytes: Popen knows them, JSON does not
    return are_texts and command[0] == sys.executable and program(command) is not None and is_cpu_only(env)

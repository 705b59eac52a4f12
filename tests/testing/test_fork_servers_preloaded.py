"""A preloaded worker is as a fresh one: in what it finds, what it prints, what it trains and how it ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks.launch.processes import WorkerProcess
from keras_dist_callbacks.testing import LocalCluster, compare_runs
from keras_dist_callbacks.testing.fork_servers import PreloadedProcess, Process, start_process
from tests.support import ROOT
from tests.testing.fork_child_cases import BEGINNINGS, ENDINGS

pytestmark = pytest.mark.process

QUICK = ("json", "tempfile", "multiprocessing.process", "concurrent.futures")  # a fork server that starts at once
Run = Callable[..., tuple[int | None, str]]


def ended(process: Process, seconds: float = 60.0) -> int:
    deadline = time.monotonic() + seconds
    while (code := process.poll()) is None:
        assert time.monotonic() < deadline, process.log.read_text()
        time.sleep(0.005)
    return code


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command to its end; asserts which kind of process it was."""
    monkeypatch.chdir(tmp_path)

    def run_command(
        command: Sequence[Any], preload: Sequence[str], kind: type | None = None, **env: str
    ) -> tuple[int, str]:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", **env}
        process = start_process([sys.executable, *command], environment, Path("log"), preload)
        assert type(process) is (kind or (PreloadedProcess if preload else WorkerProcess))
        return ended(process), Path("log").read_text(errors="surrogateescape")

    return run_command


def assert_as_fresh(run: Run, command: Sequence[str], **env: str) -> None:
    out, found = Path("out"), []
    for preload in ((), QUICK):
        out.write_text("")
        found.append((*run(command, preload, **env), out.read_text()))
    assert found[1] == found[0]


FORMS = [("script", case) for case in BEGINNINGS] + [
    (form, "names and paths") for form in ("./script", "link", "module")
]


@pytest.mark.parametrize(("form", "case"), FORMS)
def test_it_begins_as_a_fresh_one(run: Run, tmp_path: Path, form: str, case: str) -> None:
    room = tmp_path / "room"
    room.mkdir()
    for name, text in (("program.py", BEGINNINGS[case]), ("beside.py", ""), ("__init__.py", "")):
        (room / name).write_text(text)
    Path("beside.py").write_text("")
    Path("link.py").symlink_to("room/program.py")
    first = {
        "script": [str(room / "program.py")],
        "./script": ["./room/program.py"],
        "link": ["link.py"],
        "module": ["-m", "room.program"],
    }[form]
    env = {"MINE": "yes", "TF_CONFIG": "{}", "STRANGE": "\udcff", "TMPDIR": str(room), "TZ": "Asia/Tokyo"}
    assert_as_fresh(run, [*first, "--an", "argument"], **env)


@pytest.mark.kill
@pytest.mark.parametrize("case", ENDINGS)
def test_it_ends_as_a_fresh_one(run: Run, case: str) -> None:
    Path("program.py").write_text(ENDINGS[case], encoding="latin-1")
    assert_as_fresh(run, ["program.py"])


@pytest.mark.kill
@pytest.mark.parametrize("case", ["an error", "exit with a text", "SIGINT", "a syntax error"])
def test_a_module_ends_as_a_fresh_one(run: Run, case: str) -> None:
    Path("program.py").write_text(ENDINGS[case])
    assert_as_fresh(run, ["-m", "program"])


def test_a_path_may_be_a_path_and_bytes_start_fresh(run: Run) -> None:
    Path("program.py").write_text("print(5)")
    assert run([Path("program.py")], QUICK) == (0, "5\n")
    assert run([b"program.py"], QUICK, WorkerProcess) == (0, "5\n")


@pytest.mark.parametrize("command", [["-m", "no_such_module"], ["no_such_file.py"], ["-m", "room"]])
def test_what_does_not_exist_fails_as_in_a_fresh_one(run: Run, command: list[str]) -> None:
    Path("room").mkdir()
    kind = PreloadedProcess if command[0] == "-m" else WorkerProcess
    assert run(command, (), WorkerProcess) == run(command, QUICK, kind)


def test_two_draw_different_random_numbers(run: Run) -> None:
    Path("program.py").write_text(
        "import random, uuid, tempfile, numpy\n"
        "print(random.random(), numpy.random.rand(), numpy.random.default_rng().random(), uuid.uuid4())\n"
        "print(next(tempfile._get_candidate_names()))"
    )
    outputs = [run(["program.py"], ("numpy.random", "tempfile", "uuid"))[1].split() for _ in range(2)]
    assert len(outputs[0]) == 5
    assert not set(outputs[0]) & set(outputs[1])


def test_what_modules_found_out_at_their_import_is_found_out_again(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "looks.py").write_text("import tempfile\ntempfile.gettempdir()")
    Path("program.py").write_text(
        "import tempfile, multiprocessing.process, time, locale\n"
        "print(tempfile.gettempdir(), multiprocessing.process.ORIGINAL_DIR, time.tzname)\n"
        "print(locale.setlocale(locale.LC_CTYPE))\n"
        "import late"
    )
    for name, zone in (("first", "Asia/Tokyo"), ("second", "America/Lima")):
        Path(name).mkdir()
        env = {"TMPDIR": str(tmp_path / name), "TZ": zone, "PYTHONPATH": f"{tmp_path}/lib:{tmp_path}/second"}
        expected = run(["program.py"], (), **env)
        assert expected[0] == 1
        assert run(["program.py"], ("looks", "multiprocessing.process"), **env) == expected
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(name)
            expected = run(["../program.py"], (), **env)
            assert run(["../program.py"], ("looks", "multiprocessing.process"), **env) == expected
    Path("second/late.py").write_text("")
    assert run(["program.py"], ("looks", "multiprocessing.process"), **env)[0] == 0


def test_what_the_imports_set_is_there(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "talks.py").write_text("import os\nos.environ['SET_BY_IMPORT'] = '1'\n")
    Path("program.py").write_text("import os, sys, talks\nprint(os.environ['SET_BY_IMPORT'], len(sys.path))")
    env = {"PYTHONPATH": str(tmp_path / "lib")}
    expected = run(["program.py"], (), **env)
    for _ in range(2):
        assert run(["program.py"], ("talks",), **env) == expected
    assert expected[1].split()[0] == "1"


@pytest.mark.parametrize(
    ("command", "env"),
    [
        (["-c", "print(5)"], {}),
        (["-u", "program.py"], {}),
        (["-I", "-m", "program"], {}),
        (["program"], {}),
        (["program.py"], {"CUDA_VISIBLE_DEVICES": "0"}),
    ],
)
def test_what_a_fork_server_cannot_do_starts_fresh(run: Run, command: list[str], env: dict[str, str]) -> None:
    Path("program.py").write_text("print(5)")
    Path("program").write_text("print(5)")
    code, log = run(command, QUICK, WorkerProcess, **env)
    assert (code, log) == (0, "5\n") or command[0] == "-I"


def test_an_import_that_fails_is_shown_by_a_fresh_process(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "broken.py").write_text("raise RuntimeError('cannot be imported')")
    Path("program.py").write_text("import broken")
    for _ in range(2):
        code, log = run(["program.py"], ("broken",), WorkerProcess, PYTHONPATH=str(tmp_path / "lib"))
        assert code == 1
        assert "cannot be imported" in log


def test_what_is_not_installed_is_skipped(run: Run) -> None:
    Path("program.py").write_text("print(5)")
    assert run(["program.py"], ("json", "no_such_package.at_all")) == (0, "5\n")


@pytest.mark.in_gate(1)
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_it_trains_what_a_fresh_one_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, record_property: Callable[[str, object], None]
) -> None:
    monkeypatch.chdir(ROOT)
    first: dict[str, list[float]] = {}
    for name in ("fresh", "preloaded", "preloaded again"):
        command = [sys.executable, "-m", "tests.support.workload", "--epochs", "2"]
        command += ["--record", f"{tmp_path}/{name}/end", "--step-log", f"{tmp_path}/{name}-steps"]
        command += ["--strategy", "multi_worker"] if workers == 2 else []
        with LocalCluster(command, workers, tmp_path / name, preload=name != "fresh") as cluster:
            cluster.start()
            began = time.monotonic()
            steps = [tmp_path / f"{name}-steps-worker{index}" for index in range(workers)]
            first[name] = []

            def look(steps: Sequence[Path] = steps, began: float = began, seen: list[float] = first[name]) -> None:
                if not seen and all(path.exists() for path in steps):
                    seen.append(round(time.monotonic() - began, 2))

            assert cluster.wait(120, look) == [0] * workers, cluster.tails()
            kinds = {type(worker) for worker in cluster._workers}
            assert kinds == {WorkerProcess if name == "fresh" else PreloadedProcess}
    for index in range(workers):
        for name in ("preloaded", "preloaded again"):
            ends = [tmp_path / which / f"end-worker{index}" for which in ("fresh", name)]
            assert compare_runs(*ends) == []
    print(f"seconds from the start to the first batch, {workers} workers: {first}")
    record_property("seconds_to_first_batch", first)


@pytest.mark.slow
def test_unseeded_tensorflow_draws_differently_in_each(run: Run) -> None:
    Path("program.py").write_text(
        "import tensorflow as tf, keras\n"
        "print('drawn', *tf.random.normal([2]).numpy(), *keras.random.normal([2]).numpy(), end=' ')\n"
        "print(*tf.random.get_global_generator().state.numpy())"
    )
    drawn = [run(["program.py"], ("tensorflow", "keras"))[1].partition("drawn")[2].split() for _ in range(2)]
    assert len(drawn[0]) == 7
    assert not set(drawn[0]) & set(drawn[1])


@pytest.mark.slow
def test_the_environment_is_complete_after_the_imports(run: Run) -> None:
    Path("program.py").write_text(
        "import os, tensorflow, keras, sys\nprint('found', sorted(os.environ.items()), sorted(sys.flags))\n"
    )
    found = [
        run(["program.py"], preload, TF_ENABLE_ONEDNN_OPTS="0")[1].partition("found")[2]
        for preload in ((), ("tensorflow", "keras"))
    ]
    assert found[0] == found[1]

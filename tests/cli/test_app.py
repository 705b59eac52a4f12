"""What all commands of `kdc` share: errors, exit codes, secrets, a quick start; and a real backup."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.cli import formatting, output
from keras_dist_callbacks.cli.app import app
from tests.support import cli_backups
from tests.support.cli_backups import DAY, begin, commit, flip, kdc, kdc_json

url = cli_backups.url


def test_a_directory_with_nothing_of_ours_is_an_error(url: str) -> None:
    writing = (["export", url, "x.safetensors"], ["prune", url, "--keep", "1"])
    for command in (["ls", url], ["show", url], ["verify", url], *writing):
        result = kdc(*command)
        assert (result.exit_code, result.stdout) == (2, ""), command
        assert "kdc: " in result.stderr
        assert "no backup" in result.stderr or "does not exist" in result.stderr


@pytest.mark.slow
def test_a_real_interrupted_fit_is_shown(tmp_path: Path) -> None:
    from tests.support import tiny

    tiny.interrupt(tmp_path, 1, 3)
    newest, before = kdc_json("ls", tmp_path)["commits"]
    assert (newest["position"], newest["step"], newest["verdict"]) == ("epoch 2, batch 3", 8, "exact")
    assert before["position"] == "epoch 2, batch 2"
    found = kdc_json("show", tmp_path)
    assert found["callbacks"] == ["History()"]
    shapes = {row["name"]: row["shape"] for row in found["tensors"]}
    assert shapes["sequential/dense/kernel"] == [6, 7]
    assert set(found["versions"]) == {"python", "keras", "tensorflow"}
    assert kdc_json("verify", tmp_path)["all_intact"] is True
    flip(tmp_path, str(next((tmp_path / "blobs").glob("*/*")).relative_to(tmp_path)))
    assert kdc_json("verify", tmp_path, code=1)["all_intact"] is False


_COMMANDS = {
    "ls": [],
    "show": [],
    "verify": [],
    "doctor": [],
    "prune": ["--keep", "1", "--yes"],
    "watch": ["--stale-after", "1e9"],
    "report": [],
}


@pytest.mark.process
def test_every_command_runs_where_tensorflow_and_keras_cannot_be_imported(tmp_path: Path) -> None:
    assert {c.name or c.callback.__name__ for c in app.registered_commands} == {
        *_COMMANDS,
        "export",
        "launch",
        "rehearse",
        "rollback",
        "run",
    }
    store = begin(tmp_path)
    commit(store, 1)
    commit(store, 2)
    script = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('tensorflow', 'keras')))  # an import of these raises now\n"
        "from keras_dist_callbacks.cli import main\n"
        "main()\n"
    )
    files = {"export": [str(tmp_path / "out.safetensors")], "report": ["--out", str(tmp_path / "out.html")]}
    for command, options in {**_COMMANDS, **files}.items():
        line = [sys.executable, "-c", script, command, str(tmp_path), *options, "--json"]
        result = subprocess.run(line, capture_output=True, text=True, timeout=60)
        assert (result.returncode, result.stderr) == (0, ""), command
        assert json.loads(result.stdout)["url"] == str(tmp_path)
    (tmp_path / "script.py").write_text("print('it ran')")  # what it imports is its own affair
    for command in ("run", "launch"):
        line = [sys.executable, "-c", script, command, str(tmp_path / "script.py")]
        result = subprocess.run(line, capture_output=True, text=True, timeout=60)
        assert (result.returncode, result.stdout, result.stderr) == (0, "it ran\n", "")


@pytest.mark.process
def test_help_does_not_wait_for_what_only_commands_import() -> None:
    script = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('numpy', 'fsspec', 'msgspec')))  # an import of these raises now\n"
        "from keras_dist_callbacks.cli import main\n"
        "main()\n"
    )
    for command in ([], ["ls"], ["launch"], ["rehearse"]):
        line = [sys.executable, "-c", script, *command, "--help"]
        result = subprocess.run(line, capture_output=True, text=True, timeout=60)
        assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.process
def test_the_module_runs_as_the_console_script_does(tmp_path: Path) -> None:
    commit(begin(tmp_path), 1)
    script = Path(sys.executable).with_name("kdc")
    for start in ([str(script)], [sys.executable, "-m", "keras_dist_callbacks.cli"]):
        result = subprocess.run([*start, "ls", str(tmp_path)], capture_output=True, text=True, timeout=60)
        assert (result.returncode, result.stderr) == (0, "")
        assert "1-1" in result.stdout
    missing = subprocess.run([str(script), "ls", str(tmp_path / "no")], capture_output=True, text=True, timeout=60)
    assert (missing.returncode, missing.stdout, len(missing.stderr.splitlines())) == (2, "", 1)


def test_exit_codes_are_in_every_help() -> None:
    for command in ([], ["ls"], ["show"], ["verify"], ["prune"], ["doctor"], ["export"]):
        result = kdc(*command, "--help")
        assert result.exit_code == 0
        assert "Exit codes: 0 no problem" in " ".join(result.stdout.split())
    assert "138 if the job should be started again" in " ".join(kdc("run", "--help").stdout.split())


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("command", [[], ["ls"], ["show"], ["verify"], ["prune"], ["export"], ["launch"], ["rehearse"]])
def test_help_wraps_at_the_width_of_the_terminal(command: list[str], width: int) -> None:
    result = CliRunner().invoke(app, [*command, "--help"], prog_name="kdc", env={"COLUMNS": str(width)})
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert max(map(len, lines)) <= width
    prose = [line if line[:1] == " " else "" for line in lines]
    assert sum(map(bool, prose)) > 2
    for line, following in itertools.pairwise(prose):
        if line and following:
            assert len(line) + len(" " + following.split()[0]) >= width


def test_wrong_usage_is_exit_code_2() -> None:
    assert kdc("ls").exit_code == 2
    assert kdc("prune", "x", "--keep", "0").exit_code == 2
    result = kdc("ls", "nope://x")
    assert result.exit_code == 2
    assert "unknown protocol 'nope'" in result.stderr


@pytest.mark.parametrize("options", ["{secret-1234", '["secret-1234"]', '"secret-1234"'])
def test_options_that_are_no_json_object_are_refused_and_not_repeated(options: str) -> None:
    result = kdc("ls", "memory://x", "--storage-options", options)
    assert result.exit_code == 2
    assert "not a JSON object" in result.stderr
    assert "secret-1234" not in result.output


def test_secrets_in_urls_and_options_are_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, options: dict[str, Any], **_: Any) -> None:
        raise RuntimeError(f"no access to {url} with {options}")

    monkeypatch.setattr(output.Storage, "open", refuse)
    monkeypatch.setenv("KDC_STORAGE_OPTIONS", json.dumps({"key": "AKIA-1", "client": {"secret": ["wJalr-2"]}}))
    result = kdc("doctor", "ftp://john-3:hunter-4@host/dir?sig=abcd-5")
    assert result.exit_code == 2
    assert "no access to ftp://" in result.stderr
    for secret in ("AKIA-1", "wJalr-2", "john-3", "hunter-4", "abcd-5"):
        assert secret not in result.output


def test_options_come_from_the_command_line_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = output.Storage.open

    def note(url: str, options: dict[str, Any], **others: Any) -> Any:
        seen.append(options)
        return real(url, **others)

    monkeypatch.setattr(output.Storage, "open", note)
    monkeypatch.setenv("KDC_STORAGE_OPTIONS", '{"anon": true}')
    kdc("ls", "memory://x")
    kdc("ls", "memory://x", "--storage-options", '{"anon": false}')
    assert seen == [{"anon": True}, {"anon": False}]


def test_names_are_never_taken_for_markup(tmp_path: Path) -> None:
    commit(begin(tmp_path / "[red]x[/red]"), 1, {"variables/[bold]w@0": np.zeros(1)})
    text = kdc("show", tmp_path / "[red]x[/red]").stdout
    assert "[red]x[/red]" in text
    assert "[bold]w" in text


def test_sizes_ages_and_positions_read_well() -> None:
    sizes = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1048575: "1.0 MiB", 5 * 2**30: "5.0 GiB", 2**52: "4096.0 TiB"}
    assert {count: formatting.size(count) for count in sizes} == sizes
    ages = {-5: "0 s", 59.4: "59 s", 60: "1 min", 3599: "1.0 h", 5400: "1.5 h", 40000: "11 h", 86400: "1.0 d"}
    assert {seconds: formatting.age(seconds) for seconds in ages} == ages
    assert formatting.age(30 * DAY) == "30 d"
    assert (formatting.size(None), formatting.age(None), formatting.moment(None)) == ("-", "-", "-")
    assert formatting.position(Position("between", 0, 0, 0)) == "before epoch 1"
    assert formatting.moment(0) == "1970-01-01 00:00:00 UTC"


@pytest.mark.process
def test_a_stream_that_the_shell_has_closed_is_not_an_error(tmp_path: Path) -> None:
    commit(begin(tmp_path), 1)
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        line = f'"{sys.executable}" -m keras_dist_callbacks.cli ls "{tmp_path}" {closed}'
        result = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=60)
        assert (result.returncode, result.stderr) == (0, ""), closed

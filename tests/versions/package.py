"""`make package`: builds what is published, and uses it as a user would.

Wheel and sdist are built into `dist/` (the wheel from the sdist) and their contents compared with what git tracks. The
wheel is installed into a fresh environment. There the README's first example is killed and resumed; its example of a
cluster, too, and compared bit by bit with an uninterrupted run, on one worker and on two; then types and the pytest
plugin are tried. Fails at the first thing that is not as it must be.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from email.parser import BytesParser
from pathlib import Path

from tests.versions.matrix import ROOT, CommandError, Environment, run

NAME = "keras_dist_callbacks"
DIST_INFO = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
LARGEST = 8_000_000  # bytes of a package; most of the sdist is what tests and pages need
# The README's first example, shortened: 200 steps an epoch instead of 400, two epochs instead of five, more backups.
SHORTER = (("random((16000, 28", "random((8000, 28"), ("epochs=5", "epochs=2"), ("save_freq=200", "save_freq=50"))
RESUMED = re.compile(r"^kdc: Resumed from runs/backup 1-\d+ at epoch \d, batch \d+ \(step \d+\): exact$", re.MULTILINE)
TYPED = f"""
import {NAME} as kdc

callback: kdc.BackupAndRestore = kdc.BackupAndRestore("runs/backup", save_freq=200)
restored: kdc.Restored | None = callback.restored
"""
WRONG = 'kdc.BackupAndRestore("runs/backup", save_frequency=200)\n'
TIMEOUT = 300  # seconds


class Release:
    """What was built, and the environment in which it is tried."""

    def __init__(self, directory: Path, dist: Path) -> None:
        self.directory, self.dist = directory, dist
        self.environment = Environment(sys.executable, directory / "env")

    @property
    def wheel(self) -> Path:
        """The only one there is."""
        (found,) = self.dist.glob("*.whl")
        return found

    @property
    def sdist(self) -> Path:
        """The only one there is."""
        (found,) = self.dist.glob("*.tar.gz")
        return found

    @property
    def version(self) -> str:
        """As the wheel's name has it."""
        return self.wheel.name.split("-")[1]

    def command(self, name: str) -> Path:
        """A command of the environment."""
        return self.environment.python.with_name(name)

    def build(self) -> str:
        """Builds both packages."""
        shutil.rmtree(self.dist, ignore_errors=True)
        run([sys.executable, "-m", "build", "--outdir", self.dist, ROOT])
        return ", ".join(f"{path.name} {path.stat().st_size / 1e3:.0f} kB" for path in (self.sdist, self.wheel))

    def check(self) -> str:
        """Their metadata are such that a package index takes them and can show the description."""
        run([sys.executable, "-m", "twine", "check", "--strict", self.sdist, self.wheel])
        with zipfile.ZipFile(self.wheel) as archive:
            metadata = BytesParser().parsebytes(archive.read(f"{NAME}-{self.version}.dist-info/METADATA"))
        description = metadata.get_payload()
        assert isinstance(description, str)
        nowhere = re.findall(r"\]\((?!https?:|#)[^)]*\)", description)
        assert not nowhere, f"the description has links that lead nowhere on a package index: {nowhere}"
        return f"{len(description.split())} words of description, {len(metadata.get_all('Classifier', []))} classifiers"

    def contents(self) -> str:
        """The sdist has exactly what git tracks, the wheel exactly the package."""
        tracked = set(run(["git", "-C", ROOT, "ls-files", "--cached"]).splitlines())
        with tarfile.open(self.sdist) as archive:
            source = {path.name.partition("/")[2] for path in archive.getmembers() if path.isfile()}
        with zipfile.ZipFile(self.wheel) as archive:
            installed = set(archive.namelist())
        package = {path for path in tracked if path.startswith(f"{NAME}/")}
        info = {f"{NAME}-{self.version}.dist-info/{name}" for name in DIST_INFO}
        for path, found, expected in (
            (self.sdist, source, tracked | {"PKG-INFO"}),
            (self.wheel, installed, package | info),
        ):
            assert found == expected, f"{path.name}: missing or unexpected: {sorted(found ^ expected)}"
            assert path.stat().st_size < LARGEST, f"{path.name} is too large: {path.stat().st_size} bytes"
        return f"{len(source)} files in the sdist, {len(installed)} in the wheel"

    def install(self) -> str:
        """Installs the wheel into the fresh environment."""
        self.environment.install(f"{self.wheel}[tensorboard]")
        return ", ".join(f"{name} {self.environment.version(name)}" for name in ("tensorflow", "keras", "numpy"))

    def command_line(self) -> str:
        """`kdc --version` names the version of the package, which is also that in its metadata."""
        printed = run([self.command("kdc"), "--version"]).strip()
        assert printed == f"{NAME} {self.version}", printed
        assert self.environment.version(NAME) == self.version
        return printed

    def first_example(self) -> str:
        """The README's first example, killed after its first backup, lists its backups and resumes exactly."""
        code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]
        for old, new in SHORTER:
            assert code.count(old) == 1, f"the README's first example has no {old} any more; change SHORTER too"
            code = code.replace(old, new)
        place = self.directory / "first"
        place.mkdir()
        (place / "train.py").write_text(code, encoding="utf-8")
        with (place / "log").open("w") as log:
            process = subprocess.Popen([self.environment.python, "train.py"], cwd=place, stdout=log, stderr=log)
            began = time.monotonic()
            while not [*place.glob("runs/backup/commits/*.json")] and process.poll() is None:
                assert time.monotonic() - began < TIMEOUT, "no backup"
                time.sleep(0.01)
            process.kill()
        assert process.wait() == -signal.SIGKILL, (place / "log").read_text()
        listed = run([self.command("kdc"), "ls", "runs/backup"], cwd=place)
        assert "exact" in listed, listed
        printed = run([self.environment.python, "train.py"], cwd=place)
        resumed = RESUMED.search(printed)
        assert resumed is not None, printed
        assert not (place / "runs/backup/commits").exists(), "the backups of a finished run were not deleted"
        return resumed[0]

    def cluster_example(self) -> str:
        """The README's example of a cluster ends bit-identical."""
        script = Path(__file__).with_name("kill_and_resume.py")
        printed = run([self.environment.python, script, ROOT / "README.md", self.directory / "cluster"])
        assert printed.splitlines()[-2:] == ["1 ok", "2 ok"], printed
        return "killed, resumed and bit-identical on one worker and on two"

    def types(self) -> str:
        """mypy reads the package's types: a right program is right, and a wrong one is wrong."""
        self.environment.install("mypy")
        for code, wrong in ((TYPED, False), (TYPED + WRONG, True)):
            program = self.directory / "program.py"
            program.write_text(code, encoding="utf-8")
            command = [self.environment.python, "-m", "mypy", "--strict", program.name]
            found = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=False)
            errors = re.findall(r"error: (.*)", found.stdout)
            assert bool(errors) == wrong, found.stdout + found.stderr
        return errors[0]

    def plugin(self) -> str:
        """pytest finds the fixture."""
        self.environment.install("pytest")
        printed = run([self.environment.python, "-m", "pytest", "--fixtures", "-q", self.directory / "first"])
        (found,) = re.findall(rf"^local_cluster -- .*{NAME}/testing/plugin\.py.*", printed, re.MULTILINE)
        return found.partition(" -- ")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        release = Release(Path(directory), ROOT / "dist")
        steps: list[Callable[[], str]] = [
            release.build, release.check, release.contents, release.install, release.command_line,
            release.first_example, release.cluster_example, release.types, release.plugin,
        ]  # fmt: skip
        for step in steps:
            start, name = time.monotonic(), step.__name__.replace("_", " ")
            try:
                found = step()
            except (AssertionError, CommandError, subprocess.TimeoutExpired) as error:
                print(f"FAILED  {name}: {error}")
                return 1
            print(f"{time.monotonic() - start:4.0f} s  {name}: {found}", flush=True)
    print(f"{time.monotonic() - began:4.0f} s  in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())

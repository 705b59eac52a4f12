"""The README's example of a cluster, killed by SIGKILL and resumed; must end as the uninterrupted run, bit by bit.

`python kill_and_resume.py README.md DIRECTORY` runs it on one worker and on two, with the package that is
installed, and prints a line for each: `1 ok`, or `2 failed: ...`. Nothing of `tests` is imported: the
environment has only what a user's would have.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import traceback
from pathlib import Path

from keras_dist_callbacks.base.errors import KdcError
from keras_dist_callbacks.testing import LocalCluster, assert_same_run

KILL = "epoch=5,batch=59"  # training step 374 (an epoch has 63), in the middle of an epoch
_OF_READS = r"(?: if the training data were read before fit\(\) as often [^;\n]*)?"  # a condition under a strategy
RESUMED = re.compile(rf"\(step 300\)\W+exact{_OF_READS}$", re.MULTILINE)  # the example saves every 100 steps
TIMEOUT = 300.0
GRACE = 60.0  # seconds; twice what the README promises for the end of a worker that has lost another one


class RunError(Exception):
    """A run did not end as it must."""


def example(readme: Path, directory: Path) -> str:
    """The Python block of the README with a store, with a local directory and a place for the kill."""
    blocks = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    code = next((block for block in blocks if "gs://bucket" in block), None)
    if code is None:
        raise RunError(f"{readme} has no example in Python with a store")
    for old, new in (
        ("gs://bucket", str(directory)),
        ("    kdc.PrintLR(),\n", "    kdc.PrintLR(),\n    *kills,\n"),
    ):
        if old not in code:
            raise RunError(f"the example in {readme} has no {old.strip()} any more; change {Path(__file__).name} too")
        code = code.replace(old, new)
    return code


def train(readme: Path, directory: Path, kill: str | None) -> None:
    """What every worker runs: the example, then a recording of all that it ended with."""
    from keras_dist_callbacks.advanced import Cluster
    from keras_dist_callbacks.testing import KillAt, record_run

    kills = [KillAt.from_string(kill)] if kill else []
    names = {"kills": kills}
    exec(compile(example(readme, directory), str(readme), "exec"), names)  # noqa: S102 - our own README
    model = names["model"]
    record_run(directory / f"final-{Cluster.detect().worker_index}", model, model.history)  # type: ignore[attr-defined]


def run(readme: Path, directory: Path, workers: int, *, killed: bool) -> None:
    """One training, uninterrupted or killed and resumed."""
    command = [sys.executable, __file__, str(readme), str(directory), "--train"]
    with LocalCluster(command, workers, directory / "logs", grace=GRACE) as cluster:
        if killed:
            cluster.start(["--kill", f"{KILL},worker={workers - 1}"])
            codes = cluster.wait(TIMEOUT)
            others_left = all(code > 0 for code in codes[:-1])
            if codes[-1] != -signal.SIGKILL or not others_left:
                raise RunError(f"the run to be killed ended with {codes}: {_reason(cluster)}")
        cluster.restart()
        if any(codes := cluster.wait(TIMEOUT)):
            raise RunError(f"the {'resumed' if killed else 'uninterrupted'} run ended with {codes}: {_reason(cluster)}")
        if killed and not RESUMED.search(cluster.log(0)):
            raise RunError(f"the killed run was not resumed at step 300 and exact: {_reason(cluster)}")


def _reason(cluster: LocalCluster) -> str:
    """The line of the workers' logs that says why."""
    lines = [line for i in range(cluster.num_workers) for line in cluster.log(i).splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Preempted)\b", line)]
    return (errors or lines or ["the logs are empty"])[-1]


def check(readme: Path, directory: Path, workers: int) -> str:
    """`ok`, or `failed` and why."""
    plain, killed = directory / f"{workers}-uninterrupted", directory / f"{workers}-killed"
    try:
        run(readme, plain, workers, killed=False)
        run(readme, killed, workers, killed=True)
        for index in range(workers):
            assert_same_run(plain / f"final-{index}", killed / f"final-{index}")
    except (AssertionError, KdcError, RunError) as error:
        traceback.print_exc()
        return f"failed: {str(error) or type(error).__name__}".replace("\n", " ")
    return "ok"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readme", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--kill", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.readme, arguments.directory, arguments.kill)
        return
    os.environ.pop("TF_CONFIG", None)
    for workers in (1, 2):
        print(workers, check(arguments.readme, arguments.directory, workers), flush=True)


if __name__ == "__main__":
    main()

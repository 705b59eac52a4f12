"""A training script for generated cases: that of the table of resumes, with other cases and their own save_freq."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tests.support import exactness_job
from tests.support.exactness_generated import CASES, generated, seed_of


def main(argv: Sequence[str] | None = None) -> None:
    exactness_job.CASES = CASES  # type: ignore[assignment] - names of the one mapping or of the other
    seed = seed_of(exactness_job.parse(argv).case)
    backup = exactness_job.kdc.BackupAndRestore
    chosen = functools.partial(_with_freq, backup, generated(seed).save_freq)
    exactness_job.kdc.BackupAndRestore = chosen
    exactness_job.main(argv)


def _with_freq(backup: type, own: int | str, directory: str, **options: object) -> object:
    return backup(directory, **{**options, "save_freq": own})


if __name__ == "__main__":
    main()

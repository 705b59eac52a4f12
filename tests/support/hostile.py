"""Texts that a terminal would interpret, and a backup directory in which every text is one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.support.cli_backups import begin, commit, flip, publish

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n\b\x7f\x9b31m\u202etxt\u2066\u200b\u2028\u2029\ufeff"
"""Sets a title, wipes the screen, writes over a line, begins another, turns the direction, hides."""
MARKUP = "[red]x[/red][link=http://evil]y[/link]"
READABLE = "größe-中文-✓"
EVIL = f"{READABLE}{HOSTILE}{MARKUP}"
_OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def obeyed_in(text: str) -> list[str]:
    """What in a text a terminal would interpret or not show, line feeds aside."""
    return _OBEYED.findall(text)


def make(directory: Path, tmp_path: Path) -> None:
    """Backups and checkpoints, readable and damaged ones, whose every text is hostile."""
    name = EVIL.replace("/", "\u2215")
    directory.mkdir()  # by someone else: nothing of this package makes one of such a name
    store = begin(directory)
    states: list[dict[str, Any]] = [
        {
            f"callbacks/{name}": {EVIL: EVIL},
            "input/findings": [
                ["shared-variable", EVIL, [EVIL], ""],
                ["input-code", "", [EVIL], EVIL],
                [EVIL, EVIL, [], ""],
            ],
        }
    ]
    texts = {"keras": EVIL, "tensorflow": EVIL, "python": EVIL, "strategy": EVIL, "model": EVIL}
    tensors = {f"variables/{name}@0": [1.0], f"{name}/other@{HOSTILE}": [2.0]}
    for sequence in (1, 2, 3):
        commit(store, sequence, tensors, states=states, **texts)
    path = sorted(directory.glob("commits/*-*-*"))[1]
    path.write_text(json.dumps({"format": EVIL, EVIL: EVIL}))
    (directory / "commits" / f"{path.name}{name}").write_text("{}")
    (directory / f".{name}.tmp-0").write_text("")
    for kind in (".keras", ".weights.h5"):
        publish(directory, f"{name}{kind}", 1, tmp_path, monitor=EVIL, value=0.5)
        (directory / f"foreign{name}{kind}").write_text("")
    for damaged, position in (("damaged", 40), ("broken", -100)):
        checkpoint = publish(directory, f"{damaged}{name}.keras", 2, tmp_path, monitor=EVIL, value=0.5)
        flip(directory, checkpoint.name, position)

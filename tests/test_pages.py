"""Every block of the README, of the documentation and of the list of examples runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from tests.support import ROOT, tiny
from tests.support.pages import PAGES, STARTERS, Page

# Under two workers, as `kdc launch` starts it, and under none.
TRAIN = """
import keras
import numpy as np
import tensorflow as tf
import keras_dist_callbacks as kdc
strategy = kdc.make_strategy()
keras.utils.set_random_seed(1)
tf.config.experimental.enable_op_determinism()
x = np.random.default_rng(1).normal(size=(64, 4)).astype("float32")
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)
model.fit(data, epochs=2, verbose=2, callbacks=[kdc.BackupAndRestore("runs/train", save_freq=4)])
"""


@pytest.fixture(scope="module")
def ended_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six epochs of ten steps, with a backup and a checkpoint of each; and scripts."""
    place = tmp_path_factory.mktemp("ended")
    saving = [
        kdc.ModelCheckpoint(place / "run1/checkpoints/ckpt-{epoch:04d}.keras", verbose=0),
        kdc.BackupAndRestore(place / "run1/backup", delete_checkpoint=False, max_to_keep=9, verbose=0),
    ]
    tiny.model().fit(*tiny.data(), batch_size=4, epochs=6, verbose=0, callbacks=saving, validation_data=tiny.data())
    scripts = {"train.py": TRAIN, "package/train.py": TRAIN, "train.sh": "python train.py"}
    for name, text in scripts.items():
        (place / "scripts" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "scripts" / name).write_text(text)
    return place


def starts_processes(page: Path) -> bool:
    started = rf"^(kdc ({'|'.join(STARTERS)})|(\w+=\S+ )*python) "
    return re.search(started, page.read_text(encoding="utf-8"), re.MULTILINE) is not None


def named(pages: list[Path]) -> list[object]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


def run(path: Path, ended_run: Path, monkeypatch: pytest.MonkeyPatch, place: Path, *, complete: bool) -> None:
    shutil.copytree(ended_run / "scripts", place, dirs_exist_ok=True)
    monkeypatch.chdir(place)
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)  # it cannot be undone
    Page(path, ended_run, complete=complete).run()


pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:kubernetes_validate"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:jsonschema"),
]


@pytest.mark.parametrize("path", named([page for page in PAGES if not page.name.startswith("tutorial_")]))
def test_every_block_of_a_page_runs(
    path: Path, tmp_path: Path, ended_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(path, ended_run, monkeypatch, tmp_path, complete=False)


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", named([page for page in PAGES if starts_processes(page)]))
def test_every_command_of_a_page_that_starts_processes_runs_too(
    path: Path, tmp_path: Path, ended_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(path, ended_run, monkeypatch, tmp_path, complete=True)


WRONG = {
    "python": ("```python\n1 / 0\n```", "division by zero"),
    "shell": ("```shell\nif then\n```", "'bash', '-n'"),
    "kdc": ("```shell\nkdc ls runs/nothing\n```", "kdc ls runs/nothing"),
    "usage": ("```shell\nkdc launch --no-such-option train.py\n```", "no-such-option"),
    "json": ("```json\n{1}\n```", "property name"),
    "yaml": ("```yaml\napiVersion: v1\nkind: Pod\nspec: {unknown: 1}\n```", "unknown"),
    "language": ("```sh\nls\n```", "language 'sh'"),
    "output": (
        "```python\n# a.py\n```\n```shell\necho 1 is printed\n```\n```text\n2 is not printed\n```",
        "not printed: .'0 is not",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_block_that_is_wrong_is_noticed(
    name: str, tmp_path: Path, ended_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, reason = WRONG[name]
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n```shell\nkdc ls runs/backup\n```\n\n{text}\n")
    with pytest.raises(Exception, match=reason):
        run(page, ended_run, monkeypatch, tmp_path, complete=False)


def test_at_most_ten_blocks_are_skipped() -> None:
    reasons = [line for page in PAGES for line in re.findall("<!--+ *skip: .*", page.read_text(encoding="utf-8"))]
    assert len(reasons) <= 10
    assert all(re.fullmatch(r'<!-- skip: next "[^"]{20,}" -->', line) for line in reasons), reasons


def test_no_block_is_indented_instead_of_fenced() -> None:
    for page in PAGES:
        text = re.sub(r"^( *```).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert not re.findall(r"(?<=\n\n) {4}\S.*", text), page

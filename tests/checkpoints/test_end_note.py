"""The note of a training's end: which run it is about, where it is, and that nothing else is mistaken for it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_dist_callbacks.base.errors import BackupMismatchError, StorageError
from keras_dist_callbacks.checkpoints import end_note, files
from keras_dist_callbacks.checkpoints.end_note import END_NOTE, EndNote
from keras_dist_callbacks.checkpoints.files import Listing
from keras_dist_callbacks.checkpoints.record import Checkpoint
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage
from tests.support.checkpoints import TEMPLATE, may_change_accounts, note_path, opened, record, save
from tests.support.cli_backups import kdc
from tests.support.stores.fixtures import Place
from tests.support.stores.proxy import FaultProxy, Request


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    (tmp_path / "d").mkdir()
    return opened(tmp_path / "d")


def note(generation: int, template: str = TEMPLATE, *, is_ended: bool = True, last: str | None = None) -> EndNote:
    return EndNote(template, generation, is_ended, last, "0" * 12)


def saved(generation: int, template: str = TEMPLATE) -> Checkpoint:
    return Checkpoint("x.keras", record("x.keras", template=template, generation=generation))


def read(storage: Storage) -> tuple[list[EndNote], list[str]]:
    return end_note.read_all(storage, [TEMPLATE])


@pytest.mark.parametrize(
    ("notes", "checkpoints", "is_ended"),
    [
        ([], [], False),
        ([], [saved(1)], False),
        ([note(1)], [saved(1)], True),
        ([note(1)], [], True),  # a run that saved nothing
        ([note(1, last="x.keras")], [], False),  # its files were deleted, to start from the beginning
        ([note(1, last="x.keras")], [saved(1)], True),
        ([note(1)], [saved(2), saved(1)], False),  # a newer run continues
        ([note(2)], [saved(1)], True),  # a rerun that ran no step
        ([note(2, is_ended=False)], [saved(1)], False),
        ([note(1)], [saved(1), saved(1, "best.keras")], False),  # one of two callbacks has not ended yet
        ([note(1), note(1, "best.keras")], [saved(1), saved(1, "best.keras")], True),
        ([note(1), note(2, "best.keras", is_ended=False)], [saved(1), saved(1, "best.keras")], False),
        ([note(2)], [saved(2), saved(1, "other.keras")], True),  # a template of an earlier run
    ],
)
def test_the_newest_run_has_ended_when_all_its_callbacks_have(
    notes: list[EndNote], checkpoints: list[Checkpoint], is_ended: bool
) -> None:
    assert (end_note.end_of(notes, Listing(tuple(checkpoints))) is not None) == is_ended


def test_a_note_is_read_back_and_a_new_run_replaces_it(storage: Storage, tmp_path: Path) -> None:
    end_note.write(storage, TEMPLATE, 1, is_ended=False)
    assert read(storage) == ([], [])  # there was nothing to replace
    end_note.write(storage, TEMPLATE, 1, is_ended=True, last="3.keras")
    ((found,), problems) = read(storage)
    assert (found.template, found.generation, found.is_ended, found.last) == (TEMPLATE, 1, True, "3.keras")
    assert problems == []
    end_note.write(storage, TEMPLATE, 2, is_ended=False)
    ((again,), _) = read(storage)
    assert (again.generation, again.is_ended) == (2, False)
    assert again.token != found.token
    assert [path.name for path in tmp_path.iterdir() if path.name != "d"] == [note_path(tmp_path / "d").name]
    assert list((tmp_path / "d").iterdir()) == []


def test_a_run_that_was_superseded_does_not_change_the_note(storage: Storage) -> None:
    end_note.write(storage, TEMPLATE, 2, is_ended=True)
    before = read(storage)
    end_note.write(storage, TEMPLATE, 1, is_ended=True)
    assert read(storage) == before


@pytest.mark.parametrize("content", [b"", b"junk", b"[]", b"{}", b'{"seal": "x"}', b"\xff"])
def test_a_damaged_note_is_a_problem_and_not_an_end(storage: Storage, tmp_path: Path, content: bytes) -> None:
    end_note.write(storage, TEMPLATE, 1, is_ended=True)
    path = note_path(tmp_path / "d")
    path.write_bytes(content)
    notes, (problem,) = read(storage)
    assert notes == []
    assert path.name == problem.name
    end_note.write(storage, TEMPLATE, 1, is_ended=True)
    assert read(storage)[1] == []


def test_every_changed_byte_is_noticed(storage: Storage, tmp_path: Path) -> None:
    end_note.write(storage, TEMPLATE, 1, is_ended=True, last="3.keras")
    path = note_path(tmp_path / "d")
    good = path.read_bytes()
    for position in range(len(good)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        notes, problems = read(storage)
        assert (notes, len(problems)) == ([], 1), good[position : position + 20]


def test_a_note_of_a_newer_version_is_refused(storage: Storage, tmp_path: Path) -> None:
    import dataclasses

    note_path(tmp_path / "d").write_bytes(dataclasses.replace(END_NOTE, version=2).encode(note(1)))
    with pytest.raises(BackupMismatchError, match=r"format version 2 is not supported \(known: 1 to 1\)"):
        read(storage)


def test_a_note_under_the_name_of_another_template_does_not_count(storage: Storage, tmp_path: Path) -> None:
    note_path(tmp_path / "d").write_bytes(END_NOTE.encode(note(1, "other.keras")))
    assert read(storage) == ([], [])


def test_listings_and_commands_do_not_show_it(storage: Storage, tmp_path: Path) -> None:
    published = save(storage, 1)
    end_note.write(storage, TEMPLATE, 1, is_ended=True, last=published.name)
    assert files.find(storage) == Listing((published,), (), (), 1)
    for command in ("ls", "verify", "doctor"):
        result = kdc(command, tmp_path / "d")
        assert result.exit_code == 0, result.output
        assert "training-end" not in result.output


@pytest.mark.parametrize("url", ["memory://", "s3://bucket", "s3://bucket/", "s3://arn:aws:s3:eu-west-1:1:ap/n/d"])
def test_a_bucket_has_the_note_inside(url: str) -> None:
    ((place, name),) = end_note.hidden_places(opened(url), "training-end", TEMPLATE)
    assert (place.root, name.startswith(".training-end-")) == (opened(url).root, True)


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("url", ["memory://a/d", "s3://bucket/d/", "gs://bucket/a/d"])
def test_a_directory_in_a_store_has_the_note_next_to_it(url: str) -> None:
    (parent, name), (_, inside) = end_note.hidden_places(opened(url), "training-end", TEMPLATE)
    assert f"{parent.root}/d" == opened(url).root
    assert parent.display() == url.rstrip("/")[:-2]
    assert name == f".d{inside}"


def test_a_directory_whose_name_is_as_long_as_may_be_has_the_note_inside(tmp_path: Path) -> None:
    storage = opened(tmp_path / ("d" * 255))
    end_note.write(storage, TEMPLATE, 1, is_ended=True)
    assert [info.name[:14] for info in storage.files()] == [".training-end-"]
    assert read(storage)[0][0].is_ended


def test_a_linked_directory_has_the_note_inside(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    end_note.write(opened(tmp_path / "link"), TEMPLATE, 1, is_ended=True)
    assert [path.name[:14] for path in (tmp_path / "real").iterdir()] == [".training-end-"]
    ((found,), _) = read(opened(tmp_path / "real"))
    assert found.is_ended


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    for name in ("volume", "mount"):
        (tmp_path / name).mkdir()
    if subprocess.run(["mount", "--bind", tmp_path / "volume", tmp_path / "mount"], check=False).returncode:
        pytest.skip("this account must not mount")
    yield tmp_path / "mount"
    subprocess.run(["umount", tmp_path / "mount"], check=True)


@pytest.mark.process
def test_a_mounted_volume_has_everything_inside_and_is_read_from_both_sides(mounted: Path) -> None:
    save(opened(mounted), 1)
    end_note.write(opened(mounted), TEMPLATE, 1, is_ended=True, last="1.keras")
    names = sorted(path.name for path in mounted.iterdir())
    assert (names[0][:14], names[1:]) == (".training-end-", ["1.keras"])
    other_side = opened(mounted.parent / "volume")
    listing = files.find(other_side)
    assert end_note.end_of(end_note.read_all(other_side, listing.templates)[0], listing) is not None


@pytest.mark.process
def test_a_parent_that_must_not_be_written_has_the_note_inside() -> None:
    if not may_change_accounts():
        pytest.skip("this account must not become another one")
    with tempfile.TemporaryDirectory(dir="/tmp") as above:
        directory = Path(above) / "d"
        directory.mkdir()
        directory.parent.chmod(0o755)
        os.chown(directory, 65534, 65534)
        process = os.fork()
        if not process:
            try:
                os.setgid(65534)
                os.setuid(65534)
                end_note.write(opened(directory), TEMPLATE, 1, is_ended=True)
            finally:
                os._exit(0)
        os.waitpid(process, 0)
        assert [path.name[:14] for path in directory.iterdir()] == [".training-end-"]
        assert read(opened(directory))[0][0].is_ended


@pytest.mark.parametrize("remote", ["s3"], indirect=True)
@pytest.mark.process
def test_a_parent_that_the_store_forbids_has_the_note_inside(remote: Place, proxy: FaultProxy) -> None:
    def is_next_to(request: Request) -> bool:
        return "/.d.training-end-" in request.path

    struck = proxy.arm("status", is_next_to, times=10**6, status=403)
    storage = remote.sub("d").through(proxy).open()
    end_note.write(storage, TEMPLATE, 1, is_ended=True)
    assert struck.struck
    assert [info.name[:14] for info in storage.files()] == [".training-end-"]
    assert read(storage)[0][0].is_ended


@pytest.mark.chaos
@pytest.mark.parametrize("remote", ["s3"], indirect=True)
@pytest.mark.process
def test_a_store_that_is_down_gets_a_warning_and_training_ends_well(remote: Place, proxy: FaultProxy) -> None:
    patience = RetryPolicy(total_seconds=1.0, max_wait=0.1, request_seconds=5.0)
    storage = remote.sub("d").through(proxy).open(patience)
    proxy.arm("status", lambda request: request.method == "PUT", times=10**6)
    with pytest.warns(RuntimeWarning, match="cannot write the note that training has ended, so a SidecarEvaluator"):
        end_note.write(storage, TEMPLATE, 1, is_ended=True)


def test_an_account_that_cannot_read_an_error_page_is_not_an_end(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Storage, name: str, *given: object) -> bytes:
        raise StorageError("the store is down")

    monkeypatch.setattr(Storage, "read", fail)
    with pytest.raises(StorageError, match="down"):
        read(storage)

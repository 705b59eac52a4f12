"""The files of one ModelCheckpoint, on the worker that writes: published in the background, tried again, deleted."""

from __future__ import annotations

import collections
import functools
import shutil
from dataclasses import dataclass
from pathlib import Path

from keras_dist_callbacks.backups.retention import Rules
from keras_dist_callbacks.base.errors import BackupMismatchError, DamagedBackupError, StorageError
from keras_dist_callbacks.base.terminal import say, uploads, warn
from keras_dist_callbacks.checkpoints import end_note, files, ownership, retention, taken_back
from keras_dist_callbacks.checkpoints.record import Checkpoint, CheckpointRecord
from keras_dist_callbacks.run.engine.writer import Owner, shared_writer
from keras_dist_callbacks.storage.storage import Storage


@dataclass(frozen=True)
class SavedFile:
    """A file that Keras has saved to a local directory of its own, and what it is going to be.

    Attributes:
        directory: Where it is; deleted with it.
        record: Its record.
        what: For messages.
        shown: Whether lines about it are printed.
    """

    directory: Path
    record: CheckpointRecord
    what: str
    shown: bool


class CheckpointWriter:
    """Publishes the files of one template, one at a time.

    Args:
        storage: Their directory.
        template: That of their names.
        most_failures: How many may fail in a row.

    Attributes:
        generation: Number of the run, counted by directory.
        token: What the files of this training have in common.
        published: The order of the newest file that this fit has put in place.
    """

    def __init__(self, storage: Storage, template: str, most_failures: int | None) -> None:
        self._storage, self._template, self._most_failures = storage, template, most_failures
        self.generation, self.token = 1, ""
        self.published: tuple[int, int] | None = None
        self._owner = Owner()
        self._failures = 0  # in a row
        self._refused: dict[int, str] = {}  # by the error's id: what the store has not taken
        self._handed: CheckpointRecord | None = None  # of the newest file that was handed over
        self._unpublished: SavedFile | None = None  # the newest one, where it waits on the local disk for another try
        self._newest_name: str | None = None
        self._has_warned_of_deleting = False
        self._notes: collections.deque[str] = collections.deque()  # what happened in the background

    def begin(self, owner: Owner, back_to: taken_back.Place | None = None) -> list[Checkpoint]:
        """A fit begins: claims the template's files, and returns those of earlier runs, from old to new.

        Args:
            owner: The fit.
            back_to: Where training was rolled back to: what was saved after that does not count any more.
        """
        shared_writer().finish_earlier()  # a fit() that was interrupted may still be writing
        self._forget_unpublished()
        self._refused.clear()
        self._owner, self._failures, self._handed, self.published = owner, 0, None, None
        self._has_warned_of_deleting = False
        self.report()
        self._storage.probe()
        ownership.claim(self._storage, self._template)  # before anything is listed: then no earlier run adds to it
        files.remove_unfinished(self._storage, self._template)
        listing = files.find(self._storage)
        self.token = files.run_token(listing, self._template)
        own = files.own(listing, self._template, self.token)
        if back_to is not None:
            later = taken_back.later_than(own, back_to)
            taken_back.move_aside(self._storage, later)
            own = [one for one in own if one.name not in later]
        self._newest_name = own[-1].name if own else None
        notes, _ = end_note.read_all(self._storage, {self._template, *listing.templates})
        self.generation = 1 + max([listing.generation, *(note.generation for note in notes if note.is_ended)])
        end_note.write(self._storage, self._template, self.generation, is_ended=False)
        return own

    @property
    def has_written(self) -> bool:
        """Whether this fit has handed a file over."""
        return self._handed is not None

    @property
    def unpublished(self) -> SavedFile | None:
        """The newest file, if the store has not taken it."""
        return self._unpublished

    def is_worth_writing(self, new: CheckpointRecord) -> bool:
        """Returns whether a rule would keep a file next to those that are there, or that are going to be."""
        handed = self._handed
        is_open = handed is not None and handed.order != self.published
        try:
            present = [one.record for one in self._own()]
        except (StorageError, BackupMismatchError):
            return True  # writing it will tell
        if handed is not None and is_open and handed.order not in {record.order for record in present}:
            present.append(handed)
        return retention.is_worth_writing(new, present, new.rules)

    def make_room(self) -> None:
        """Waits for the file before: a slow store must not fill the local disk. One that has failed is given up."""
        shared_writer().wait_for(self._owner)
        self._forget_unpublished()

    def submit(self, file: SavedFile) -> None:
        """Hands a file to the queue; where no thread can be started, it waits for another try, with a warning."""
        self._handed, self._unpublished = file.record, None
        try:
            shared_writer().submit(functools.partial(self._publish, file), file.what, self._owner)
        except RuntimeError as error:
            self._unpublished = file
            warn(
                f"{file.what} failed and training continues; it is tried again unless a newer file comes first: {error}"
            )

    def report(self) -> None:
        """Warns of files that the store has not taken; raises what else a write ended with, or if they are too many."""
        while (failure := shared_writer().take_failure(self._owner)) is not None:
            what = self._refused.pop(id(failure), None)
            if what is None:
                raise failure
            self._warn_of(what, failure)
        while self._notes:
            warn(self._notes.popleft())

    def _warn_of(self, what: str, error: BaseException) -> None:
        warn(f"{what} failed and training continues; it is tried again unless a newer file comes first: {error}")

    def finish(self) -> StorageError | None:
        """Makes sure that the newest file is in place, with a last try if it is not; returns why it cannot be."""
        shared_writer().wait()
        self.report()
        if (failed := self._unpublished) is None:
            return None
        try:
            self._put(failed)  # in this thread: it may be that no other can be started
        except StorageError as error:
            return error
        finally:
            self._forget_unpublished()
        return None

    def conclude(self, rules: Rules | None) -> None:
        """All files are in place: deletes what a killed run could not delete, and notes the end of training.

        Args:
            rules: What is kept. None: what the run that wrote the newest file keeps.
        """
        ownership.check(self._storage, self._template)
        self._delete_others(rules, None)
        self.report()
        end_note.write(self._storage, self._template, self.generation, is_ended=True, last=self._newest_name)

    def _publish(self, file: SavedFile) -> None:
        failed = None
        try:
            self._put(file)
        except StorageError as error:
            self._failures += 1
            if self._failures == self._most_failures:
                raise StorageError(f"{self._failures} files in a row were not saved, the last one: {error}") from error
            failed = file if self._owner.is_alive() else None
            self._refused[id(error)] = file.what
            raise  # the queue keeps it for `report`, and warns if this fit() has been left
        finally:
            if failed is None:
                shutil.rmtree(file.directory)
            self._unpublished = failed

    def _put(self, file: SavedFile) -> None:
        source = file.directory / file.record.published_name
        with uploads(file.what, source.stat().st_size, shown=file.shown) as advance, self._storage.reporting(advance):
            ownership.check(self._storage, self._template)
            published = files.publish(self._storage, source, file.record)
        self._failures, self.published, self._newest_name = 0, published.record.order, published.name
        say(f"saved {self._storage.display(published.name)}", verbose=0)  # what is printed was said when it was due
        self._delete_others(published.record.rules, published.record)

    def _delete_others(self, rules: Rules | None, published: CheckpointRecord | None) -> None:
        """Deletes what no rule keeps. What cannot be deleted is one warning, and is tried again after the next file."""
        if rules is not None and rules.keep_all:
            return
        try:
            own = [one for one in self._own() if one.record.generation <= self.generation]
            if own:
                rules = rules or own[-1].record.rules
                retention.delete_others(self._storage, own, rules, published=published)
        except (StorageError, BackupMismatchError) as error:
            if not self._has_warned_of_deleting:
                self._has_warned_of_deleting = True
                self._notes.append(f"old files cannot be deleted, and are tried again after the next save: {error}")

    def _own(self) -> list[Checkpoint]:
        return files.own(files.find(self._storage), self._template, self.token)

    def _forget_unpublished(self) -> None:
        if self._unpublished is not None:
            shutil.rmtree(self._unpublished.directory, ignore_errors=True)
            self._unpublished = None


def latest_best(storage: Storage, own: list[Checkpoint], monitor: str) -> CheckpointRecord | None:
    """Returns the record of the newest intact file that was saved as the best by a monitored quantity."""
    for checkpoint in reversed(own):
        record = checkpoint.record
        if record.best_only and record.monitor == monitor and record.value is not None:
            try:
                return files.verify(storage, checkpoint.name).record
            except (DamagedBackupError, FileNotFoundError):
                continue  # it cannot be the best; latest_checkpoint reports it
    return None

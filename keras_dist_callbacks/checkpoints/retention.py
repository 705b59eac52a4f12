"""Which checkpoint files are worth writing, which may be deleted, and which is the best.

All of it follows from the records of the files that are there now. A file belongs to a run if it was made from the
run's template, has its token and its published name: copies and files of other runs are never deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keras_dist_callbacks.backups.retention import Mode, Rule, Rules, kept, ranked
from keras_dist_callbacks.base.errors import DamagedBackupError, StorageError
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.checkpoints.record import Checkpoint, CheckpointRecord
from keras_dist_callbacks.storage.storage import Storage


@dataclass(frozen=True)
class Standing:
    """What the rules say of a file.

    Attributes:
        kept_by: The rules that keep it.
        is_best: Whether no file of its run has a better value.
    """

    kept_by: tuple[Rule, ...] = ()
    is_best: bool = False


def is_worth_writing(new: CheckpointRecord, present: Iterable[CheckpointRecord], rules: Rules) -> bool:
    """Returns whether a rule would keep a file that is about to be written.

    Args:
        new: Its record.
        present: Those of the run's files; one of the same name would be replaced.
        rules: What is kept.
    """
    replaced = [record for record in present if record.published_name == new.published_name]
    others = [record for record in present if record not in replaced]
    reasons = kept([*others, new], rules)[-1]
    if reasons == ("keep_best",):  # the better one of two that have one name
        return ranked([*replaced, new], rules.monitor, rules.mode)[0] == len(replaced)
    return bool(reasons)


def delete_others(
    storage: Storage, own: Sequence[Checkpoint], rules: Rules, *, published: CheckpointRecord | None
) -> None:
    """Deletes those files of a run that no rule keeps; the newest intact one stays in any case.

    A file that cannot be deleted does not keep the others from it.

    Args:
        storage: The directory.
        own: The files of the run, as they are there now, from old to new.
        rules: What is kept.
        published: What this process has just put there, which need not be read to know that it is intact.

    Raises:
        StorageError: One could not be deleted; the first reason.
    """
    reasons = kept([one.record for one in own], rules)
    unwanted = [one for one, why in zip(own, reasons, strict=True) if not why]
    if not unwanted:
        return
    newest = next((one for one in reversed(own) if one.record == published or _is_intact(storage, one)), None)
    failures = []
    for one in unwanted:
        if one is not newest and newest is not None:
            try:
                storage.delete(one.name)
            except StorageError as error:
                failures.append(error)
    if failures:
        raise failures[0]


def best_first(checkpoints: Sequence[Checkpoint], monitor: str | None, mode: Mode) -> list[Checkpoint]:
    """Returns the checkpoints that have a value of a monitored quantity, the best first; of equal ones the earlier."""
    originals_first = sorted(checkpoints, key=lambda one: not one.is_original)
    places = ranked([one.record for one in originals_first], monitor, mode)
    return [originals_first[place] for place in places]


def standings(listing: files.Listing) -> dict[str, Standing]:
    """Returns by name what the newest rules of each run say of its files; nothing for copies."""
    runs: dict[tuple[str, str], list[Checkpoint]] = {}
    for one in listing.checkpoints:  # the newest first
        if one.is_original:
            runs.setdefault((one.record.template, one.record.run_token), []).append(one)
    found: dict[str, Standing] = {}
    for own in runs.values():
        newest, records = own[0].record, [one.record for one in own]
        best = ranked(records, newest.monitor, newest.mode)[:1] if newest.mode else []
        for place, (one, why) in enumerate(zip(own, kept(records, newest.rules), strict=True)):
            found[one.name] = Standing(why, place in best)
    return found


def _is_intact(storage: Storage, checkpoint: Checkpoint) -> bool:
    try:
        files.verify(storage, checkpoint.name)
    except (DamagedBackupError, FileNotFoundError):
        return False
    return True

"""What a resume does not repeat exactly, or only under a condition: values, and the one place where they are sentences.

A finding is saved as it is, in the backup of the run that made it. Nothing looks into a sentence to decide something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from keras_dist_callbacks.base.terminal import escape_controls, first_few

Effect = Literal["lost", "unknown", "known"]
"""`"lost"`: the resume is not exact. `"unknown"`: it is exact if what the sentence says holds."""

FINDINGS = "findings"
"""The topic of each part of the state with what was found in it."""

SAVED_LIST = list[tuple[str, str, list[str], str]]
"""The form of what `to_json` returns."""

FINISHED = "finished"
"""`Finding.carried_from` of what an earlier `fit()` of the script, which was finished before, could not save."""

_LONGEST = 400


@dataclass(frozen=True)
class Finding:
    """One thing that a resume does not repeat exactly, or of which that is not known.

    Attributes:
        code: The row of `CATALOG` that says what it means.
        subject: Whose it is, such as "the callback Ema" or "input".
        detail: What fills the row's sentence: names, values before and now.
        carried_from: The position of an earlier resume that it belongs to, or `FINISHED`; empty: to this one.
    """

    code: str
    subject: str = ""
    detail: tuple[str, ...] = ()
    carried_from: str = ""

    @property
    def row(self) -> Row:
        """What it means. A code that a newer version has added makes a resume not exact."""
        return CATALOG.get(self.code, _NOT_KNOWN)

    @property
    def effect(self) -> Effect:
        """What follows for this resume: what was lost before may have made no difference."""
        return "unknown" if self.carried_from else self.row.effect

    @property
    def message(self) -> str:
        """It alone, as a sentence with what to do; of the effect `"unknown"`, to be read after "exact if"."""
        return sentences([self])[0]


class Row(NamedTuple):
    """What all findings of one code have in common.

    Attributes:
        effect: See `Effect`.
        sentence: `{subject}` and `{0}`, `{1}`, ... are those of a finding; `{items}` lists all of one subject.
        advice: What makes the next resume exact; empty if nothing does.
        item: How one finding reads in `{items}`.
        in_each_run: Two uninterrupted runs differ for the same reason.
    """

    effect: Effect
    sentence: str
    advice: str = ""
    item: str = ""
    in_each_run: bool = False


_NOT_KNOWN = Row(
    "lost", "a newer version of keras-dist-callbacks found what this one does not know ({code})", "install that version"
)

_SAME_DATA = "give fit() the same data"
_BACKUP_BEFORE = "`kdc rollback` goes back to the backup before"
_GIVE_STATE = "give the callback get_state and set_state to save it"
_ASSERTED = "kdc.advanced.stateless_input asserts that"
_READ_BEFORE = "the {subject} were read before fit() as often as in the interrupted run, which was not compared "
_OWN_LOOP = (
    "your loop changes nothing but what the Checkpointer was given, and draws nothing by TensorFlow's stateful random "
    "operations"
)
_OTHER_DIRECTORY = "give each run a directory of its own, or delete the directory"
_RATE = "the learning rate that the script sets before training changed from {0} to {1}, and that of the backup, {2},"
_SCHEDULER = "keras.callbacks.LearningRateScheduler(lambda epoch: {1})"
_SET_SEED = "call keras.utils.set_random_seed first"
_OTHER_PARTS = ", and where the script splits the dataset, its parts have other rows than before"


def _unseeded(why: str, effect: str = "its order is drawn again after a restart", advice: str = "write {1}") -> Row:
    return Row("lost", f"{{0}} of the {{subject}} {why}: {effect}", advice)


CATALOG: Mapping[str, Row] = {
    # --- what must be as it was
    "workers": Row("lost", "the number of workers changed from {0} to {1}", "resume with as many workers as before"),
    "replicas": Row("lost", "the number of replicas changed from {0} to {1}", "resume with as many replicas as before"),
    "strategy": Row("lost", "the strategy changed from {0} to {1}", "resume under the same strategy"),
    "steps_per_epoch": Row("lost", "the batches per epoch changed from {0} to {1}", "use the same data and batch size"),
    "steps_per_execution": Row("lost", "steps_per_execution changed from {0} to {1}", "compile the model as before"),
    "keras": Row("lost", "the version of Keras changed from {0} to {1}", "resume with the version as before"),
    "tensorflow": Row("lost", "the version of TensorFlow changed from {0} to {1}", "resume with the version as before"),
    "seed": Row(
        "lost",
        "the global seed changed from {0} to {1}",
        "call keras.utils.set_random_seed with the same seed",
    ),
    "environment": Row("lost", "{0} changed from {1} to {2}, which may change the last bits of results"),
    "python-version": Row("unknown", "{0}, which was {1} and is {2} now, does not affect the user's Python code"),
    "switch": Row("lost", "training has changed {0}, which is not restored"),
    "unordered-sums": Row(
        "unknown",
        "TensorFlow adds in the same order in each run: {items}",
        "tf.config.experimental.enable_op_determinism() guarantees that",
        "{0}",
    ),
    # --- variables
    "variables-not-saved": Row(
        "lost",
        "variables that are neither in model.variables nor in model.optimizer are not saved ({items})",
        "in layers of your own, make them with add_weight; or use Checkpointer(variables=...)",
        item="{0}",
    ),
    "step-variables": Row(
        "lost",
        "variables that the train step uses and Keras does not list ({0}) are not restored: number {1} was {2} in the "
        "interrupted run and is {3} now",
    ),
    "step-operation": Row("lost", "what the operation {0} of the train or test step keeps is not saved"),
    "step-random": Row(
        "lost",
        "the train or test step draws random numbers by TensorFlow's {items}, whose state cannot be saved",
        "use keras.random with a keras.random.SeedGenerator, or TensorFlow's stateless functions",
        item="{0}",
    ),
    "step-python": Row("unknown", "the Python function {0} in the train or test step keeps no state"),
    "step-opaque": Row("unknown", "the model's own train_function, which cannot be inspected, keeps no state"),
    "function-random": Row(
        "unknown",
        "training does not depend on the random numbers that the tf.function {subject} draws by TensorFlow's {items}, "
        "whose state cannot be saved",
        item="{0}",
    ),
    "metrics-new": Row("lost", "metrics that the backup does not hold are not restored ({items})", item="{0}"),
    "metrics-gone": Row("lost", "metrics of the backup are not in the model now ({items})", item="{0}"),
    "slots-new": Row(
        "lost",
        "the optimizer has variables now that the backup does not have ({items}); they are not restored",
        item="{0}",
    ),
    "local-state": Row(
        "lost", "{subject}'s local state was too large to be saved", "raise WriteOptions(max_local_state=...)"
    ),
    # --- what training has made of the compiled model
    "compiled": Row(
        "lost", "compile() was called during fit()", "compile before fit(), or call fit() again after compile()"
    ),
    "optimizer-replaced": Row(
        "lost", "the model was given another optimizer during fit()", "give it to compile() before fit()"
    ),
    "mode-changed": Row(
        "lost", "run_eagerly or jit_compile was changed during fit()", "give it to compile() before fit()"
    ),
    "variables-trainable": Row(
        "lost", "training has changed trainable of single variables ({items})", "set trainable of layers", item="{0}"
    ),
    "as-compiled": Row(
        "lost",
        "what the interrupted run has compiled during fit() is not made again: the optimizer, and which layers are "
        "frozen, are as the script has them",
    ),
    # --- callbacks and the user's own objects
    "missed-hooks": Row(
        "lost",
        "an exception in a callback ended the interrupted run, so that {items} is left out, or called twice",
        _BACKUP_BEFORE,
        "{0}",
    ),
    "cut-hooks": Row(
        "unknown", "training does not depend on what an exception cut off in {items}", _BACKUP_BEFORE, "{0}"
    ),
    "callback-new": Row("lost", "the callback {0} was not in the interrupted run; it starts without saved state"),
    "callback-gone": Row("lost", "the callback {0} of the interrupted run is not in the list now"),
    "rows-missing": Row(
        "lost",
        "{subject}: {0} has {1} of the {2} bytes that it had at the backup: rows of earlier epochs are missing",
    ),
    "rows-changed": Row("lost", "{subject}: {0} was changed since the backup; it is kept, and rows are appended"),
    "callback-state": Row(
        "lost", "the state of {subject} is not restored: {items}", "give it get_state and set_state", "{0} ({1})"
    ),
    "object-state": Row(
        "lost",
        "the state of {subject} is not restored: {items}",
        "keep it in a callback that has get_state and set_state",
        "{0} ({1})",
    ),
    "unseen-state": Row("unknown", "{subject} keeps no state in {items}", item="{0} ({1})"),
    "unseen-state-of-callback": Row("unknown", "{subject} keeps no state in {items}", _GIVE_STATE, "{0} ({1})"),
    "unseen-state-assertable": Row("unknown", "{subject} keeps no state in {items}", "{2} asserts that", "{0} ({1})"),
    "code": Row("unknown", "training does not depend on what {subject} does: {0}"),
    "traced": Row(
        "unknown",
        "no function that TensorFlow traced before the change uses {items} of {subject}",
        "keep a number that changes in a keras.Variable",
        "{0}",
    ),
    "set-otherwise": Row(
        "unknown",
        "other values after set_state than in the interrupted run do not affect training: {items}",
        item="{0}",
    ),
    "validation-copied": Row(
        "unknown", "{0} of {subject} is as it was when the first validation of this fit() copied it"
    ),
    # --- edits of the script
    "setting": Row("lost", "{0} changed from {1} to {2}"),
    "other-training": Row(
        "lost",
        "{0} changed from {1} to {2}",
        "build and compile the model as before to resume, or use another directory to start again",
    ),
    "rate-kept": Row(
        "lost",
        f"{_RATE} stays in force",
        f"to set the new one, add {_SCHEDULER}, which sets it in each epoch, in the place of a ReduceLROnPlateau",
    ),
    "rate-kept-in-loop": Row(
        "lost",
        f"{_RATE} stays in force",
        "to set the new one, assign optimizer.learning_rate = {1} after restore()",
    ),
    "rate-scheduled": Row("lost", f"{_RATE} is in force until {{3}} sets one, from epoch {{4}} on"),
    "edited-code": Row("unknown", "the changes in {subject} ({items}) do not affect training", item="`{0}`"),
    "edited-callbacks": Row(
        "unknown", "callbacks that only one of the two runs has do not affect training: {items}", item="{0}"
    ),
    "edited-values": Row(
        "unknown", "other values than in the interrupted run do not affect training: {items}", item="{0}"
    ),
    # --- the data
    "files-changed": Row("lost", "of the {subject}, {0} have another size or content", _SAME_DATA),
    "files-names": Row("lost", "the {0} have other names or another order", _SAME_DATA),
    "files-not-compared": Row(
        "unknown",
        "the {0} of the {subject} have the same content as before (other times, and not all were compared)",
    ),
    "values": Row("lost", "the {subject} has as many rows as before, but other values in them", _SAME_DATA),
    "data-not-compared": Row("unknown", "the data of the {subject} are the same as in the interrupted run ({0})"),
    "input-seed": Row(
        "lost",
        "{0} changed from {1} to {2}",
        "give it the same one in each run (keras.utils.image_dataset_from_directory draws one itself)",
    ),
    # --- the input: orders without a seed
    "unseeded": _unseeded("has no seed"),
    "unseeded-fixed": _unseeded(
        "has no seed, and other datasets of the script may share what it draws",
        f"its order is drawn again after a restart{_OTHER_PARTS}",
    ),
    "unseeded-cache": _unseeded(
        "has no seed, and other datasets of the script may share the cache() after it",
        f"its order is drawn again after a restart{_OTHER_PARTS}",
    ),
    "unseeded-file": _unseeded("has no seed, and files of cache(FILE) or snapshot() keep its order"),
    "unseeded-function": _unseeded("has no seed, and is called in a function"),
    "unseeded-numbers": _unseeded(
        "is called in a function, without a seed", "its numbers are drawn again after a restart", _SET_SEED
    ),
    "unseeded-large": _unseeded("has no seed, and the input has too many rows to be made again with one"),
    "unseeded-distributed": _unseeded("has no seed, and the dataset was distributed before"),
    "unseeded-epoch": _unseeded("has no seed, and EpochDataset makes it for each epoch"),
    "unseeded-operation": _unseeded("has no seed", advice=_SET_SEED),
    "unseeded-hidden": _unseeded("cannot be inspected, and may shuffle without a seed", advice=_SET_SEED),
    "order-seeded-now": Row(
        "lost",
        "the interrupted run had no global seed, and this one has, so that fit() reads its input in another order",
        "do not call keras.utils.set_random_seed to resume this run",
    ),
    "order-fixed-now": Row(
        "lost",
        "the order of the interrupted run's input had no seed, and now it has one or needs none",
        "resume without that seed",
    ),
    # --- the input: what two runs read differently
    "loose-order": Row(
        "lost",
        "{0} with deterministic=False yields its elements in an order that differs from run to run",
        "remove deterministic=False",
        in_each_run=True,
    ),
    "loose-order-unread": Row("unknown", "{0} was not given deterministic=False (its data are too large)"),
    "parallel-draws": Row(
        "lost",
        "the parallel calls of {0} draw from one random state ({1}), so that two runs draw different numbers",
        "leave out its num_parallel_calls, or begin the script with tf.config.experimental.enable_op_determinism()",
        in_each_run=True,
    ),
    "racing-parts": Row(
        "lost",
        "two parts of the input run in parallel and both draw from {0}, so that two runs differ",
        "give each part its own random layer or generator",
        in_each_run=True,
    ),
    "early-end": Row(
        "lost",
        "{0} ends a pass while the stages before it already draw the next order, so that two runs differ",
        "move it before the stage that repeats or joins shuffled data, or add prefetch after it",
        in_each_run=True,
    ),
    "service-workers": Row(
        "lost",
        "the tf.data service at {0} has {1} workers, and which one's element comes first differs from run to run",
        "use one worker",
        in_each_run=True,
    ),
    "service-not-asked": Row("unknown", "the tf.data service at {0}, which could not be asked, has a single worker"),
    "input-table": Row(
        "lost",
        "the input changes a lookup table, which cannot be saved",
        "fill tables before training",
        in_each_run=True,
    ),
    "generator-on-replicas": Row(
        "lost",
        "a Python generator under a strategy is read in no fixed order",
        "use tf.data or keras.utils.PyDataset",
        in_each_run=True,
    ),
    # Keras finds the end of such an input by a step without data, which runs in part on some replicas, and not always
    # on the same ones: counters, metrics and slots differ between two uninterrupted runs.
    "unknown-length": Row(
        "lost",
        "with several replicas, the end of an input of unknown length leaves a step half done, not always in the same "
        "way",
        "give the input a length (assert_cardinality), or repeat() it and give steps_per_epoch",
        in_each_run=True,
    ),
    "read-ahead-before": Row(
        "lost",
        "under a strategy, Keras builds the model with a batch of the PyDataset, and trains in the first epochs what "
        "its workers have read ahead meanwhile",
        "use workers=1 without use_multiprocessing",
        in_each_run=True,
    ),
    # --- the input: what it keeps
    "position-late": Row(
        "lost",
        "the input was asked for its position when Keras had read its first batches to learn their types, and its "
        "dataset or sampler keeps a state of its own",
        "give the dataset no state_dict, or use EpochDataset",
    ),
    "shared-variable": Row(
        "lost",
        "the input and training both draw from {0}, one ahead of the other",
        "give the input its own random layer or SeedGenerator",
    ),
    "changed-while-waiting": Row(
        "lost",
        "training has changed {0} while batches that the input had made with it were waiting, which a resume does not "
        "repeat",
        "change it between epochs, without steps_per_epoch",
    ),
    "shared-with-validation": Row(
        "lost",
        "training and validation data draw from the same random state while the iterator over the training data is "
        "still open",
        "give each its own random layer",
    ),
    "cached-variable": Row(
        "lost",
        "the cache() of a dataset has kept what the first pass made of {items}, which has changed since, and a resumed "
        "run fills the cache again",
        "use the variable after the cache()",
        "{0}",
    ),
    "input-variables": Row(
        "lost",
        "of the variables that the input's functions use, number {0} was {1} in the interrupted run and is {2} now; "
        "none of them was restored",
    ),
    "kept-in-files": Row(
        "unknown",
        "the files of {0} are as complete when training resumes as they were when it began, and when the interrupted "
        "epoch did: what they keep draws from what is also read beside them",
        "call cache() without a file, or let nothing else draw from it",
    ),
    "input-code": Row("unknown", "{0} keeps no state of its own, and shares none with training", _ASSERTED),
    # Of what runs ahead, it is not known how many numbers it has drawn.
    "input-code-ahead": Row(
        "unknown", "{0} keeps no state, global random states included, and shares none with training", _ASSERTED
    ),
    "batches-again": Row(
        "unknown", "{0} gives the same batches when an interrupted epoch is read again: {1}", _ASSERTED
    ),
    "writer-of-input": Row("unknown", "within an epoch, {subject} does not change what the PyDataset reads"),
    "writer-of-position": Row("unknown", "{subject} does not change what the input's get_state returns"),
    "reshuffled-by-reader": Row("unknown", "{subject} does not read `{0}`, which the input reshuffles in each pass"),
    "passes-of-reader": Row("unknown", "{subject} does not read `{0}`, or each pass over it is the same"),
    # --- the input: its passes
    "passes-counted": Row(
        "lost",
        "this dataset object shuffles again each time, and had been read {0} before the interrupted run, but {1} "
        "before this one",
        "build the dataset again before each fit(), or use EpochDataset",
    ),
    "first-pass": Row(
        "lost",
        "the {subject} begin at another pass, or with another seed, than in the interrupted run, as after reading them "
        "before fit() in one of the two runs",
        "read them as often as then, or build the dataset again before fit()",
    ),
    "first-pass-hidden": Row("unknown", _READ_BEFORE + "(under a strategy, iterators do not show their seeds)"),
    "first-pass-mixed": Row("unknown", _READ_BEFORE + "(not each of their shuffles has a seed)"),
    "first-pass-large": Row("unknown", _READ_BEFORE + "(shuffle buffers of more than {0} elements)"),
    # --- several fits
    "skipped-batches": Row("known", "{0} skipped (the loss was not finite)"),
    "skipped": Row(
        "lost",
        "fit() number {0} of the interrupted process saved this backup, and this is number {1} with the same "
        "backup_dir and model: the model gets the weights of the backup, no step is run, and the later fit() resumes",
        "give each fit() a directory of its own, with delete_checkpoint=False",
    ),
    "not-resumed": Row("lost", "training starts from the beginning, because {0}"),
    "ran-no-step": Row(
        "lost",
        "fit() runs no step: an earlier fit() of this process has left {0} at {1}",
        f"{_OTHER_DIRECTORY}, or ask for more epochs",
    ),
    "ran-no-step-stopped": Row(
        "lost", "fit() runs no step: an earlier fit() of this process has left {0} at {1}", _OTHER_DIRECTORY
    ),
    "of-another-training": Row(
        "lost",
        "fit() runs no step: {0} is at {1}, and this backup belongs to another training",
        "delete it or use another directory",
    ),
    "finished-averages": Row(
        "lost",
        "the finished run may have replaced its weights at the end (averages of the optimizer, or the best weights of "
        "EarlyStopping)",
        "give fit() all epochs from the start",
    ),
    "same-dataset": Row(
        "unknown",
        "the script gives this fit() the dataset object of the fit() before it (a new dataset would start its shuffled "
        "orders again)",
    ),
    "results-of-skipped": Row("unknown", "nothing depends on the results of the earlier fit(), which was skipped"),
    "model-is-later": Row(
        "unknown", "no code after a fit() that ran no step depends on the model, which is at {0} already"
    ),
    # --- loops
    "loop": Row("unknown", _OWN_LOOP + " with a seed of their own"),
    "loop-unseeded": Row("unknown", _OWN_LOOP + ", for which no global seed was set"),
    "loop-batches": Row(
        "unknown",
        "your loop gives each step the same batch as before",
        "Checkpointer.batches() and Checkpointer.iterator() do",
    ),
    "loop-begins": Row(
        "unknown",
        "your loop begins the interrupted epoch at checkpointer.batch, and neither draws nor changes anything before",
        "Checkpointer.batches() sees to both",
    ),
    "loop-uncounted": Row(
        "unknown",
        "your loop itself resumes at the right batch",
        "with Checkpointer.step() after each batch it is known",
    ),
    "loop-twice": Row(
        "lost",
        "the loop had called batches() or iterator() more than once in the interrupted epoch, and a resume continues "
        "in the first of them",
        "zip the datasets, or call save() between epochs",
    ),
    # --- starts from a checkpoint
    "checkpoint": Row("lost", "callbacks, random states and the position in the data are not restored"),
    "new-optimizer": Row("lost", "the optimizer starts from its initial state"),
    "optimizer-not-in-file": Row(
        "lost", "the file holds no state for {items}, which starts from its initial state", item="{0}"
    ),
    "model-differs": Row(
        "lost",
        "the model of build_fn differs from that of the file: {items}",
        item="{0} was {1} and is {2} now",
    ),
    "model-not-compared": Row("lost", "its configuration cannot be compared with that of the model of build_fn ({0})"),
}


def to_json(findings: Iterable[Finding]) -> list[list[Any]]:
    """Returns findings as a backup holds them."""
    return [[one.code, one.subject, list(one.detail), one.carried_from] for one in dict.fromkeys(findings)]


def from_json(saved: Iterable[Sequence[Any]]) -> list[Finding]:
    """Returns what `to_json` was given."""
    return [Finding(code, subject, tuple(detail), carried) for code, subject, detail, carried in saved]


def made(found: Iterable[Sequence[str]]) -> list[Finding]:
    """Returns findings of tuples that begin with the code and go on with the detail."""
    return [Finding(code, detail=tuple(detail)) for code, *detail in found]


def sentences(findings: Iterable[Finding]) -> list[str]:
    """Returns what findings say, those of one code and subject together; of each code at most four sentences."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in dict.fromkeys(findings):
        key = (finding.code, finding.subject, finding.carried_from, () if finding.row.item else finding.detail)
        groups.setdefault(key, []).append(finding)
    texts: dict[str, list[str]] = {}
    for together in groups.values():
        texts.setdefault(together[0].code, []).append(_sentence(together))
    return [escape_controls(text) for of_code in texts.values() for text in first_few(list(dict.fromkeys(of_code)))]


def _sentence(together: list[Finding]) -> str:
    first = together[0]
    row = first.row
    items = list(dict.fromkeys(_filled(row.item, one) for one in together)) if row.item else []
    text, advice = _filled(row.sentence, first, ", ".join(first_few(items))), _filled(row.advice, first)
    if first.carried_from == FINISHED:
        return f"nothing depends on what the earlier fit(), which is finished, could not save ({text})"
    if first.carried_from:
        return f"the resume at {_bounded(first.carried_from)}, which was not exact, made no difference: {text}"
    return f"{text}; {advice}" if advice else text


def _filled(template: str, finding: Finding, items: str = "") -> str:
    detail = [*map(_bounded, finding.detail), *[""] * 6]  # a backup of another version may have fewer
    return template.format(*detail, subject=_bounded(finding.subject), code=_bounded(finding.code), items=items)


def _bounded(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."

"""What `fit()` was given to read: the stages of its pipelines, and the data that they and arrays hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from keras import tree

from keras_dist_callbacks._compat import pipeline
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.facts.content import are_files, digest_of, file_facts, names_of, rows_of, texts_of

_COMPARED_ROWS = 32
_KNOWN_SOURCES = ("TensorSlice", "Tensor", "Range", "Random", "TextLine", "TFRecord", "FixedLengthRecord", "Csv")


class Input:
    """All that one fit reads. Names of places are what users are told.

    Args:
        fit: The running fit.

    Attributes:
        values: What each place holds in memory.
        rows: Of training data, those of the values of which one row is one example, without weights.
    """

    def __init__(self, fit: RunningFit) -> None:
        self.fit = fit
        self.values: dict[str, list[Any]] = {}
        self.rows: dict[str, list[Any]] = {}
        self._paths: dict[str, dict[str, None]] = {}
        self._stages = dict(self._places())
        if fit.arrays:
            is_weighted = fit.argument("class_weight") is not None  # of which Keras has made the third array
            self.values["input"] = _flat(fit.arrays[:2] if is_weighted else fit.arrays)
            self.rows["input"] = _flat(fit.arrays[:2])
        source = fit.validation_source
        if not any(static.has(source, name) for name in ("_inputs", "__next__", "on_epoch_end")):
            self.values["validation data"] = _flat((source, fit.argument("val_y"), fit.argument("val_sample_weight")))
        for where, stage in self._stages.items():
            self._add(where, pipeline.tensors_of(stage))

    def _places(self) -> Iterator[tuple[str, Any]]:
        """The stages of the pipelines in the order in which they are read, by what the script calls them."""
        pipelines = {"input": pipeline.original(self.fit.data)} if self.fit.kind_of_input == "TFDataset" else {}
        if static.has(self.fit.validation_source, "_inputs"):
            pipelines["validation data"] = self.fit.validation_source
        for root, dataset in pipelines.items():
            counts: Counter[str] = Counter()
            for stage in reversed(list(pipeline.stages(dataset))):
                called = _called(stage)
                counts[called] += 1
                yield f"{root}/{called}{f' number {counts[called]}' if counts[called] > 1 else ''}", stage

    def _add(self, where: str, tensors: list[Any]) -> None:
        root, values = where.partition("/")[0], []
        for tensor in tensors:
            texts = texts_of(tensor)
            if are_files(texts):
                self._paths.setdefault(root, {}).update(dict.fromkeys(texts))
            else:
                values.append(tensor)
        self.values[where] = values
        if root == "input" and len(values) == len(tensors):
            self.rows[where] = values

    def stages(self) -> dict[str, str]:
        """Returns after which other one each stage comes, and what it was made with."""
        found, last = {}, "first"
        for where, stage in self._stages.items():
            held = enumerate(pipeline.held_by_functions(stage))  # as the mean of a Normalization in a map
            settings = {
                **pipeline.settings(stage),
                **{f"tensors that function {number} holds": digest_of(tensors)[0] for number, tensors in held},
                "range": pipeline.range_of(stage),
            }
            found[where], last = last, f"after {where.partition('/')[2]}"
            found.update({f"{where}/{name}": value for name, value in settings.items() if value is not None})
        return found

    def seeds(self) -> dict[str, str]:
        """Returns the seeds of stages that draw by themselves, such as shuffles."""
        found = ((where, pipeline.seeds_of(stage)) for where, stage in self._stages.items())
        return {f"{where}/{name}": seed for where, seeds in found for name, seed in seeds.items()}

    def data(self) -> dict[str, dict[str, str]]:
        """Returns of each place the shapes and a digest of what it holds, and what of its data was not read."""
        found = {}
        for where, values in self.values.items():
            digest, unread = digest_of(values)
            if not values and self._reads_elsewhere(where):
                unread = "what it reads was not compared"
            if values or unread:
                shapes = str([tuple(value.shape) for value in values])
                found[where] = {"shapes": shapes, "values": digest, "unread": unread}
        return found

    def _reads_elsewhere(self, where: str) -> bool:
        """Returns whether a stage reads what nothing is known of, such as a data base."""
        stage = self._stages.get(where)
        is_known = not pipeline.is_source(stage) or pipeline.kind_of(stage) in _KNOWN_SOURCES
        return not is_known and pipeline.range_of(stage) is None

    def first_rows(self) -> dict[str, list[str]]:
        """Returns digests of the first rows of training data in memory."""
        return {where: rows_of(arrays, _COMPARED_ROWS) for where, arrays in self.rows.items()}

    def files(self) -> dict[str, dict[str, Any]]:
        """Returns what identifies the files that the pipelines read."""
        return {root: file_facts(list(paths)) for root, paths in self._paths.items()}

    def names_of_files(self) -> dict[str, str]:
        """Returns how many there are, and a digest of their names."""
        return {f"{root}/files": f"{len(paths)} files, {names_of(paths)}" for root, paths in self._paths.items()}


def _called(stage: Any) -> str:
    return pipeline.method_of(pipeline.kind_of(stage))


def _flat(arrays: Any) -> list[Any]:
    return [array for array in tree.flatten(arrays) if array is not None]

"""Changed data are named, or the answer depends on them; the same data, made again, are the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.restored import Restored
from tests.support import tiny

Fit = dict[str, Any]
Make = Callable[[bool, Path], Fit]
"""What `fit()` is given, as it is or changed; the directory is for files."""

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")]


def rows(change: float = 0.0) -> np.ndarray:
    x = tiny.data()[0]
    x[17, 3] += change
    return x


def last_bit(changed: bool) -> np.ndarray:
    x = rows()
    if changed:
        x[17, 3] = np.nextafter(x[17, 3], np.float32(np.inf))
    return x


def labels() -> np.ndarray:
    return tiny.data()[1]


def weights(changed: bool) -> np.ndarray:
    found = np.ones(tiny.ROWS, "float32")
    found[5] += changed
    return found


def arrays(**changed: Callable[[bool], Any]) -> Make:
    def make(is_changed: bool, directory: Path) -> Fit:
        fit = {"x": rows(), "y": labels(), "batch_size": 8}
        return {**fit, **{name: value(is_changed) for name, value in changed.items()}}

    return make


def dataset(make: Callable[[bool], tf.data.Dataset]) -> Make:
    return lambda is_changed, directory: {"x": make(is_changed)}


def ragged(changed: bool) -> tf.data.Dataset:
    values = tf.RaggedTensor.from_row_lengths(rows(changed).reshape(-1), [6] * tiny.ROWS)
    dense = tf.data.Dataset.from_tensor_slices((values, labels()))
    return dense.map(lambda x, y: (tf.ensure_shape(x, (6,)), y)).batch(8)


def sparse(changed: bool) -> tf.data.Dataset:
    values = tf.sparse.from_dense(rows(changed))
    return tf.data.Dataset.from_tensor_slices((values, labels())).map(lambda x, y: (tf.sparse.to_dense(x), y)).batch(8)


def of_texts(changed: bool) -> tf.data.Dataset:
    texts = [b"good", b"bad!" if changed else b"well"] * (tiny.ROWS // 2)
    found = tf.data.Dataset.from_tensor_slices((texts, labels()))
    return found.map(lambda text, y: (tf.cast(tf.io.decode_raw(text + b"--", tf.uint8), tf.float32) / 128.0, y)).batch(
        8
    )


def scaled(changed: bool) -> tf.data.Dataset:
    factor = tf.constant(2.0 if changed else 1.0)
    return plain().map(lambda x, y: (x * factor, y)).batch(8)


def plain() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((rows(), labels()))


def table(changed: bool) -> tf.data.Dataset:
    keys, values = tf.constant([0, 1], tf.int64), tf.constant([1.0, 3.0 if changed else 2.0])
    lookup = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 0.0)
    return plain().map(lambda x, y: (x * lookup.lookup(tf.cast(y[0], tf.int64)), y)).batch(8)


def csv(is_changed: bool, directory: Path) -> Fit:
    path = directory / "rows.csv"
    lines = [",".join(f"{number:.6f}" for number in [*x, *y]) for x, y in zip(rows(is_changed), labels(), strict=True)]
    path.write_text("\n".join(lines))
    parsed = tf.data.TextLineDataset(str(path)).map(lambda line: tf.stack(tf.io.decode_csv(line, [0.0] * 7)))
    return {"x": parsed.map(lambda row: (row[:6], row[6:])).batch(8).apply(tf.data.experimental.assert_cardinality(5))}


def records(is_changed: bool, directory: Path) -> Fit:
    path = str(directory / "rows.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for x, y in zip(rows(is_changed), labels(), strict=True):
            writer.write(np.append(x, y).astype("float32").tobytes())
    parsed = tf.data.TFRecordDataset(path).map(lambda record: tf.reshape(tf.io.decode_raw(record, tf.float32), (7,)))
    return {"x": parsed.map(lambda row: (row[:6], row[6:])).batch(8).apply(tf.data.experimental.assert_cardinality(5))}


def saved(is_changed: bool, directory: Path) -> Fit:
    path = str(directory / "saved")
    tf.data.Dataset.from_tensor_slices((rows(is_changed), labels())).save(path)
    return {"x": tf.data.Dataset.load(path).batch(8)}


def kept(is_changed: bool, directory: Path) -> Fit:
    """A cache's file beside the shuffle that fills it: not there at first, and complete where that has changed."""
    for file in () if is_changed else directory.glob("kept*"):
        file.unlink()
    keras.utils.set_random_seed(7)  # which the shuffle is made from, whatever ran before
    both = plain().shuffle(40)
    pairs = tf.data.Dataset.zip(both.take(20).cache(str(directory / "kept")), both.skip(20))
    return {"x": pairs.map(lambda a, b: (a[0] + b[0], a[1])).batch(8)}


class Rows(keras.utils.PyDataset):
    def __init__(self, x: np.ndarray, scale: float = 1.0) -> None:
        super().__init__()
        self.x, self.scale = x, scale

    def __len__(self) -> int:
        return tiny.STEPS

    def __getitem__(self, index: int) -> Any:
        part = slice(8 * index, 8 * index + 8)
        return self.x[part] * self.scale, labels()[part]


class Generator:
    """Yields batches of an array that it holds."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def __call__(self) -> Iterator[Any]:
        yield from zip(self.x.reshape(5, 8, 6), labels().reshape(5, 8, 1), strict=True)


def generated(changed: bool) -> tf.data.Dataset:
    specs = (tf.TensorSpec((8, 6), tf.float32), tf.TensorSpec((8, 1), tf.float32))
    return tf.data.Dataset.from_generator(Generator(rows(changed)), output_signature=specs).apply(
        tf.data.experimental.assert_cardinality(5)
    )


KINDS: dict[str, Make] = {
    "one value": arrays(x=lambda changed: rows(changed)),
    "a value in its last bit": arrays(x=last_bit),
    "order of rows": arrays(x=lambda changed: np.concatenate([rows()[:20], rows()[:19:-1]]) if changed else rows()),
    "one label": arrays(y=lambda changed: np.where(np.arange(tiny.ROWS)[:, None] == 7 * changed, 0.5, labels())),
    "one row less": arrays(x=lambda c: rows()[: 40 - c], y=lambda c: labels()[: 40 - c]),
    "sample weights": arrays(sample_weight=weights),
    "class weights": arrays(class_weight=lambda changed: {0: 1.0, 1: 1.0 + changed}),
    "type of values": arrays(x=lambda changed: rows().astype("float64" if changed else "float32")),
    "batch size": arrays(batch_size=lambda changed: 10 if changed else 8),
    "share of validation": arrays(validation_split=lambda changed: 0.4 if changed else 0.2),
    "validation rows": arrays(validation_data=lambda changed: (rows(changed), labels())),
    "validation weights": arrays(validation_data=lambda changed: (rows(), labels(), weights(changed))),
    "tensors": arrays(x=lambda changed: tf.constant(rows(changed))),
    "a dataset's rows": dataset(lambda c: tf.data.Dataset.from_tensor_slices((rows(c), labels())).batch(8)),
    "one large element": dataset(lambda c: tf.data.Dataset.from_tensors((rows(c), labels())).unbatch().batch(8)),
    "ragged rows": dataset(ragged),
    "sparse rows": dataset(sparse),
    "texts": dataset(of_texts),
    "a tensor in a map": dataset(scaled),
    "a lookup table": dataset(table),
    "a seed": dataset(lambda changed: plain().shuffle(40, seed=3 + changed).batch(8)),
    "a buffer": dataset(lambda changed: plain().shuffle(40 - changed, seed=3).batch(8)),
    "rows left out": dataset(lambda changed: plain().skip(int(changed)).repeat(2).take(40).batch(8)),
    "order of stages": dataset(
        lambda c: plain().repeat(2).take(40).batch(8) if c else plain().take(40).repeat(2).batch(8)
    ),
    "weights of sources": dataset(
        lambda changed: (
            tf.data.Dataset.sample_from_datasets(
                [plain().repeat(), plain().repeat()], [0.5 + 0.1 * changed, 0.5 - 0.1 * changed], seed=3
            )
            .take(40)
            .batch(8)
        )
    ),
    "a function": dataset(
        lambda changed: plain().map((lambda x, y: (x + 1, y)) if changed else (lambda x, y: (x + 2, y))).batch(8)
    ),
    "a line of a file": csv,
    "a record of a file": records,
    "a saved dataset": saved,
    "files that keep a pass": kept,
    "an array of a PyDataset": arrays(x=lambda changed: Rows(rows(changed)), y=lambda changed: None),
    "a number of a PyDataset": arrays(x=lambda changed: Rows(rows(), 1.0 + changed), y=lambda changed: None),
    "an array of a generator": dataset(generated),
}
ALWAYS_CONDITIONAL = {"a saved dataset", "an array of a generator", "files that keep a pass"}
CONDITIONAL = {
    *ALWAYS_CONDITIONAL,
    "a function",
    "a lookup table",
    "an array of a PyDataset",
    "a number of a PyDataset",
}
"""Values that are not numbers, code, and what Python code of the input holds: it may not matter."""


def resume(backup: Path, directory: Path, fit: Fit) -> Restored:
    shutil.copytree(backup, directory)
    callback = kdc.BackupAndRestore(directory)
    tiny.fit(tiny.model(), None, [callback], **fit)
    assert callback.restored is not None
    return callback.restored


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.in_gate(2)
def test_changed_data_are_not_taken_for_the_same(tmp_path: Path, kind: str) -> None:
    backup = tmp_path / "backup"
    tiny.interrupt(backup, 1, 2, **KINDS[kind](False, tmp_path))
    same = resume(backup, tmp_path / "same", KINDS[kind](False, tmp_path))
    changed = resume(backup, tmp_path / "changed", KINDS[kind](True, tmp_path))
    assert changed.verdict == ("exact if" if kind in CONDITIONAL else "not exact")
    assert same.verdict == ("exact if" if kind in ALWAYS_CONDITIONAL else "exact")

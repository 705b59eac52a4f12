"""Files that keep a pass: where the same is drawn from before them and beside them, complete files skip a draw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks._compat import pipeline


def rows() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(np.arange(40.0))


def noisy(seed: int) -> Callable[[tf.Tensor], tf.Tensor]:
    generator = keras.random.SeedGenerator(seed)
    return lambda x: x + tf.cast(keras.random.normal((), seed=generator), x.dtype)


NOISY = noisy(3)


def zipped(shuffled: tf.data.Dataset, kept: tf.data.Dataset) -> list[tf.data.Dataset]:
    return [tf.data.Dataset.zip(kept, shuffled.skip(20)).map(lambda a, b: a + b).batch(4)]


FORMS: dict[str, tuple[bool, Any]] = {
    "cache": (True, lambda d, file: zipped(d, d.take(20).cache(file))),
    "snapshot": (True, lambda d, file: zipped(d, d.take(20).snapshot(file))),
    "validation data": (True, lambda d, file: [d.skip(20).cache(file).batch(4), d.take(20).batch(4)]),
    "cache in memory": (False, lambda d, file: zipped(d, d.take(20).cache())),
    "nothing beside it": (False, lambda d, file: [d.cache(file).batch(4)]),
    "variables beside it": (True, lambda d, file: zipped(rows().map(NOISY), rows().map(NOISY).cache(file))),
    "other variables beside it": (False, lambda d, file: zipped(rows().map(noisy(4)), rows().map(NOISY).cache(file))),
    "another shuffle beside it": (False, lambda d, file: zipped(rows().shuffle(40), d.cache(file))),
    "rows beside it": (False, lambda d, file: zipped(rows(), rows().cache(file))),
    "everything behind it": (False, lambda d, file: (lambda kept: zipped(kept, kept))(d.cache(file))),
}


@pytest.mark.parametrize("name", FORMS)
def test_files_count_where_they_skip_a_draw_of_a_shared_shuffle(name: str, tmp_path: Path) -> None:
    expected, make = FORMS[name]
    found = pipeline.shared_before_files(make(rows().shuffle(40), str(tmp_path / "kept")))
    assert bool(found) == expected

"""Files that keep a pass: where a shuffle is read both before them and beside them, complete files skip a draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks._compat import pipeline


def rows() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(np.arange(40.0))


def zipped(shuffled: tf.data.Dataset, kept: tf.data.Dataset) -> list[tf.data.Dataset]:
    return [tf.data.Dataset.zip(kept, shuffled.skip(20)).map(lambda a, b: a + b).batch(4)]


FORMS: dict[str, tuple[bool, Any]] = {
    "cache": (True, lambda d, file: zipped(d, d.take(20).cache(file))),
    "snapshot": (True, lambda d, file: zipped(d, d.take(20).snapshot(file))),
    "validation data": (True, lambda d, file: [d.skip(20).cache(file).batch(4), d.take(20).batch(4)]),
    "cache in memory": (False, lambda d, file: zipped(d, d.take(20).cache())),
    "nothing beside it": (False, lambda d, file: [d.cache(file).batch(4)]),
    "another shuffle beside it": (False, lambda d, file: zipped(rows().shuffle(40), d.cache(file))),
    "rows beside it": (False, lambda d, file: zipped(rows(), rows().cache(file))),
    "everything behind it": (False, lambda d, file: (lambda kept: zipped(kept, kept))(d.cache(file))),
}


@pytest.mark.parametrize("name", FORMS)
def test_files_count_where_they_skip_a_draw_of_a_shared_shuffle(name: str, tmp_path: Path) -> None:
    expected, make = FORMS[name]
    found = pipeline.shared_before_files(make(rows().shuffle(40), str(tmp_path / "kept")))
    assert bool(found) == expected


@pytest.mark.parametrize("keep", ["cache", "snapshot"])
def test_files_are_complete_after_the_first_pass(keep: str, tmp_path: Path) -> None:
    kept = getattr(rows().shuffle(40), keep)(str(tmp_path / "kept"))
    (stage,) = (stage for stage in pipeline.stages(kept) if pipeline.kept_in(stage))
    assert not pipeline.is_kept_whole(stage)
    list(kept)
    assert pipeline.is_kept_whole(stage)

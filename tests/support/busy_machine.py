"""What tests change because several of them share the processors: neither is what they are about, both cost minutes."""

from __future__ import annotations

import os

from keras_dist_callbacks.run.engine import writer

REAL_PRIORITY = writer.lower_priority
VARIABLE = "KDC_TESTS_SHARE_PROCESSORS"


def share_processors() -> None:
    """Lets background threads and inputs of this process be as quick as the tests next to it.

    Writers have a low priority, so that a neighbour which never waits would hold them up. And on busy processors the
    deletion of an iterator sometimes waits for its tuning thread, with the GIL held: a test of 4 s took 140 s.
    """
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops, iterator_ops

    writer.lower_priority = lambda: None
    create, options_of = iterator_ops.OwnedIterator._create_iterator, dataset_ops.DatasetV2.options

    def options(self: tf.data.Dataset) -> tf.data.Options:
        """Of a dataset for which nothing was chosen: not tuned, for any caller."""
        found = tf.data.Options().merge(options_of(self))
        if found.autotune.enabled is None:
            found.autotune.enabled = False
        return found

    iterator_ops.OwnedIterator._create_iterator = lambda self, dataset: create(
        self, dataset.with_options(dataset.options())
    )
    dataset_ops.DatasetV2.options = options


if os.environ.get(VARIABLE):
    share_processors()

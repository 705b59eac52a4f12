"""What Keras 3 needs to train under MultiWorkerMirroredStrategy.

Plain Keras 3 fails there in `fit`, `evaluate` and `train_on_batch` (keras issue 20585): building the model
symbolically reduces a per-replica batch across workers although only shapes and dtypes are needed, and
scalars are averaged along an axis that they do not have. Both repairs are guarded by signature and undoable.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from keras_dist_callbacks._compat import coordination, keras_in_use
from keras_dist_callbacks._compat.incompatible import incompatible
from keras_dist_callbacks.base.process import Shared, shared

_MARK = "_kdc_original"


@dataclass
class _Explained(Shared):
    by: Callable[[BaseException], BaseException] | None = None


def is_multi_worker(strategy: Any) -> bool:
    """Returns whether the strategy is MultiWorkerMirrored over more than one worker."""
    import tensorflow as tf

    return (
        isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        and bool(strategy.extended._in_multi_worker_mode())
        and int(strategy.extended._num_workers) > 1
    )


def build_strategy(jobs: dict[str, list[str]], task_type: str, task_id: int, options: Any) -> Any:
    """Builds MultiWorkerMirroredStrategy for a cluster of training workers only.

    A TF_CONFIG that also names `ps`, `evaluator` or `master` makes TensorFlow hang or fail: it is replaced
    for this process by one that names the training workers.
    """
    import tensorflow as tf

    os.environ["TF_CONFIG"] = json.dumps({"cluster": jobs, "task": {"type": task_type, "index": task_id}})
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def enable_multi_worker_fit() -> Callable[[], None]:
    """Makes Keras 3's `fit`, `evaluate`, `predict` and `train_on_batch` work under MultiWorkerMirroredStrategy.

    `make_strategy` calls it; call it yourself if you build the strategy yourself, before the model is
    trained. Calling it again changes nothing.

    Returns:
        A function that takes the change back.

    Raises:
        CompatError: The installed Keras differs from the versions that this package knows.
        ConfigError: Keras does not run on TensorFlow.
    """
    keras_in_use.require_backend()
    from keras.src.backend.tensorflow import trainer

    _check(trainer)
    cls = trainer.TensorFlowTrainer
    if not hasattr(cls._maybe_symbolic_build, _MARK):
        cls._maybe_symbolic_build = _symbolic_build_from_local_values(cls._maybe_symbolic_build)
    if not hasattr(trainer.reduce_per_replica, _MARK):
        trainer.reduce_per_replica = _reduce_scalars_across_workers(trainer.reduce_per_replica)
    return _disable


def set_error_translator(explain: Callable[[BaseException], BaseException]) -> None:
    """What makes a plain error of TensorFlow's at the start of `fit`, which means a lost worker, of it."""
    shared(_Explained).by = explain


def _disable() -> None:
    from keras.src.backend.tensorflow import trainer

    cls = trainer.TensorFlowTrainer
    cls._maybe_symbolic_build = getattr(cls._maybe_symbolic_build, _MARK, cls._maybe_symbolic_build)
    trainer.reduce_per_replica = getattr(trainer.reduce_per_replica, _MARK, trainer.reduce_per_replica)


def _check(trainer: Any) -> None:
    cls = getattr(trainer, "TensorFlowTrainer", None)
    for owner, name, parameters in (
        (cls, "_maybe_symbolic_build", ("self", "iterator", "data_batch")),
        (trainer, "reduce_per_replica", ("values", "strategy", "reduction")),
    ):
        function = getattr(owner, name, None)
        if function is None or tuple(inspect.signature(function).parameters) != parameters:
            raise incompatible(
                f"{trainer.__name__}'s {name} is not as expected ({', '.join(parameters)}), so multi-worker fit cannot "
                "be enabled"
            )


def _symbolic_build_from_local_values(original: Callable[..., None]) -> Callable[..., None]:
    import tensorflow as tf

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        if not is_multi_worker(self._distribute_strategy):
            original(self, iterator=iterator, data_batch=data_batch)
            return
        strategy = self._distribute_strategy
        if iterator is not None:
            data_batch = _first_batch(iterator)
        local = tf.nest.map_structure(lambda value: strategy.experimental_local_results(value)[0], data_batch)
        with strategy.scope():
            self._symbolic_build(data_batch=local)

    setattr(_maybe_symbolic_build, _MARK, original)
    return _maybe_symbolic_build


def _first_batch(iterator: Any) -> Any:
    """Returns which the workers make together: here a lost one shows itself first."""
    try:
        for *_, batches in iterator:
            return next(batches)
    except coordination.peer_errors() as error:
        explain = shared(_Explained).by
        if explain is None:
            raise
        raise explain(error) from error
    return None


def _reduce_scalars_across_workers(original: Callable[..., Any]) -> Callable[..., Any]:
    import tensorflow as tf

    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if is_multi_worker(strategy) and reduction in ("auto", "mean"):
            return tf.nest.map_structure(lambda v: strategy.reduce("MEAN", v, axis=None), values)
        return original(values, strategy, reduction)

    setattr(reduce_per_replica, _MARK, original)
    return reduce_per_replica

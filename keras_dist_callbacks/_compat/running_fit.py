"""The seam into a running Keras 3 `fit()` on TensorFlow.

Callbacks do not see fit's data iterator. It is found here, walking up from a callback's hook to fit's frame.
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import keras
import numpy as np

from keras_dist_callbacks._compat.incompatible import incompatible
from keras_dist_callbacks._compat.shortened import most_batches, shorten


@dataclass(frozen=True)
class RunningFit:
    """What is known of a running fit().

    Attributes:
        model: The model in training.
        epoch_iterator: Its iterator over epochs.
        callback_list: The list whose hooks fit calls; None while that list is being built.
        epochs: fit's argument.
        initial_epoch: fit's argument, before it is changed for a resume.
    """

    model: Any
    epoch_iterator: Any
    callback_list: Any
    epochs: int
    initial_epoch: int = 0

    @property
    def data(self) -> Any:
        """The dataset that training iterates over."""
        return self.epoch_iterator._distributed_dataset

    @property
    def num_batches(self) -> int | None:
        """Batches of one pass over the input; None if not known."""
        value = self.epoch_iterator._num_batches
        return None if value is None else int(value)

    @property
    def known_length(self) -> int | None:
        """Batches of one pass as the input itself says; None where Keras learns it from the first epoch."""
        value = self.epoch_iterator.data_adapter.num_batches
        return None if value is None else int(value)

    @property
    def has_unknown_length(self) -> bool:
        """Whether the input is a dataset whose end Keras finds only by reaching it."""
        import tensorflow as tf

        if self.known_length is not None or self.steps_per_epoch or not isinstance(self.input, tf.data.Dataset):
            return False
        return bool(int(self.input.cardinality()) == tf.data.UNKNOWN_CARDINALITY)

    @property
    def created_unused_iterator(self) -> bool:
        """Whether the epoch that has just ended made an iterator that nothing will be read of.

        Of an input of unknown length Keras takes as many batches as the first epoch had, and one: an epoch that has
        them all ends before its iterator does, and then another one is made.
        """
        iterator = self.epoch_iterator
        return self.known_length is None and not self.steps_per_epoch and iterator._current_iterator is not None

    def set_num_batches(self, value: int | None) -> None:
        """What an earlier, complete epoch taught Keras about an input of unknown length."""
        if self.epoch_iterator._num_batches is None:
            self.epoch_iterator._num_batches = value

    @property
    def steps_per_epoch(self) -> int | None:
        """The argument of fit."""
        value: int | None = self.epoch_iterator.steps_per_epoch
        return value

    @property
    def steps_per_execution(self) -> int:
        """Batches that one call of the train function takes."""
        return int(self.epoch_iterator.steps_per_execution)

    @property
    def input(self) -> Any:
        """What the user passed as `x`."""
        return self.argument("x")

    @property
    def kind_of_input(self) -> str:
        """What Keras takes the input for: "ArrayData", "TFDataset", "PyDataset", "GeneratorData", ..."""
        return type(self.epoch_iterator.data_adapter).__name__.removesuffix("Adapter")

    @property
    def arrays(self) -> tuple[Any, ...]:
        """Inputs, targets and weights as Keras reads them from arrays, as far as there are any; empty of other inputs.

        Of `class_weight` Keras makes weights.
        """
        given = self.epoch_iterator.data_adapter._inputs if self.kind_of_input == "ArrayData" else ()
        return given if isinstance(given, tuple) else (given,)

    @property
    def batch_size(self) -> int | None:
        """How many rows of arrays are a batch; None of any other input."""
        return int(self.epoch_iterator.data_adapter.batch_size) if self.arrays else None

    @property
    def shuffle(self) -> bool | str | None:
        """How Keras shuffles arrays, or the batches of a PyDataset; None of any other input."""
        adapter, names = self.epoch_iterator.data_adapter, {"ArrayData": "_shuffle", "PyDataset": "shuffle"}
        return getattr(adapter, names[self.kind_of_input]) if self.kind_of_input in names else None

    def set_dataset(self, dataset: Any) -> None:
        """Makes the next epoch iterate over another dataset; between epochs.

        Raises:
            ValueError: Its elements are not like those of the dataset that fit was given.
        """
        weights = self.argument("class_weight")
        if weights is not None:
            from keras.src.trainers.data_adapters import tf_dataset_adapter

            dataset = dataset.map(tf_dataset_adapter.make_class_weight_map_fn(weights))
        iterator = self.epoch_iterator
        iterator._distributed_dataset = self.model.distribute_strategy.experimental_distribute_dataset(dataset)
        iterator._current_iterator = None
        iterator._steps_seen = 0
        cardinality = int(dataset.cardinality())
        iterator._num_batches = cardinality if cardinality >= 0 else None

    @property
    def pipeline(self) -> Any:
        """What Keras makes the training data of: a `tf.data.Dataset`, or a distributed one; None of other inputs."""
        return self.epoch_iterator.data_adapter.get_tf_dataset() if self.kind_of_input == "TFDataset" else None

    @property
    def builds_before_evaluating(self) -> bool:
        """Whether `evaluate` first creates an iterator to see a batch, as it does under a strategy."""
        return self.has_strategy

    @property
    def has_strategy(self) -> bool:
        """Whether the model was made in a strategy's scope."""
        return self.model._distribute_strategy is not None

    def validates(self, epoch: int) -> bool:
        """Returns whether validation follows this epoch."""
        local = _fit_variables(self.model)
        if local.get("validation_data") is None:
            return False
        return bool(self.model._should_eval(epoch, local["validation_freq"]))

    @property
    def validation_source(self) -> Any:
        """What validation reads, as the user passed it; None without validation."""
        return self.argument("val_x")

    @property
    def copied_by_validation(self) -> list[np.ndarray[Any, Any]]:
        """The arrays of `validation_data` that fit has copied; none before its first validation."""
        if getattr(self.model, "_eval_epoch_iterator", None) is None:
            return []
        given = [self.argument(name) for name in ("val_x", "val_y", "val_sample_weight")]
        return [array for array in keras.tree.flatten(given) if isinstance(array, np.ndarray)]

    def argument(self, name: str) -> Any:
        """Returns an argument or variable of the running fit(); None if it has none of that name."""
        return _fit_variables(self.model).get(name)

    @property
    def starts_fresh_iterator(self) -> bool:
        """Whether the epoch that is about to be read takes an iterator of which nothing was read."""
        iterator = self.epoch_iterator
        return not iterator.steps_per_epoch or iterator._current_iterator is None or iterator._steps_seen == 0

    def validation_iterator(self) -> Any:
        """Returns the iterator over validation data, created as fit would at its first validation.

        None without validation, or if it reads arrays, which have no state.
        """
        local = _fit_variables(self.model)
        if local.get("validation_data") is None:
            return None
        if getattr(self.model, "_eval_epoch_iterator", None) is None:
            iterator = type(self.epoch_iterator)(
                x=local["val_x"],
                y=local["val_y"],
                sample_weight=local["val_sample_weight"],
                batch_size=local["validation_batch_size"] or local["batch_size"],
                distribute_strategy=self.model.distribute_strategy,
                steps_per_execution=self.model.steps_per_execution,
                steps_per_epoch=local["validation_steps"],
                shuffle=False,
            )
            if type(iterator.data_adapter).__name__ == "ArrayDataAdapter":
                return None
            shorten(iterator, most_batches(self.epoch_iterator))
            self.model._eval_epoch_iterator = iterator
        return self.model._eval_epoch_iterator

    def copy_batches(self) -> None:
        """Under several replicas, trains and validates with copies of the batches that a PyDataset gives.

        Where a batch is a view of an array of the script's whose memory is aligned to 64 bytes, TensorFlow takes it
        over as it is; two replicas on CPUs, or two workers, then compute in it: of labels, gradients were left
        (measured with TensorFlow 2.21, with and without this package). Later epochs train with them.
        """
        if self.model.distribute_strategy.num_replicas_in_sync < 2:
            return
        iterators = [self.epoch_iterator]
        if isinstance(self.validation_source, keras.utils.PyDataset):
            iterators.append(self.validation_iterator())
        for adapter in (iterator.data_adapter for iterator in iterators):
            if type(adapter).__name__ == "PyDatasetAdapter":
                adapter._standardize_batch = _copying(adapter._standardize_batch)

    @property
    def is_python_generator(self) -> bool:
        """Whether the input is a plain Python generator."""
        return self.kind_of_input == "GeneratorData"

    @property
    def begins_with_batches_of_another_pass(self) -> bool:
        """Whether the next pass begins with batches that several workers of a PyDataset have read of the one before.

        Keras reads a batch to build the model under a strategy, and the workers read ahead meanwhile.
        """
        enqueuer = getattr(self.epoch_iterator.data_adapter, "enqueuer", None)
        return enqueuer is not None and not enqueuer.ready_queue.empty()

    @property
    def shuffles_py_dataset(self) -> bool:
        """Whether Keras shuffles the order of a PyDataset's batches, with Python's random state."""
        return self.kind_of_input == "PyDataset" and bool(self.shuffle)

    def set_initial_epoch(self, epoch: int) -> None:
        """Makes fit begin at `epoch`; only before its epoch loop starts."""
        self.model._initial_epoch = epoch

    def clear_initial_epoch(self) -> None:
        """A later fit() must not start at the epoch that this one was resumed at."""
        self.model._initial_epoch = None


def _copying(standardize: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda batch: keras.tree.map_structure(np.array, standardize(batch))


def read_instead(epoch_iterator: Any, dataset: Any) -> None:
    """Makes an epoch iterator, of which nothing was read, read another dataset that has the same elements."""
    distributed = epoch_iterator._distribute_strategy.experimental_distribute_dataset(dataset)
    epoch_iterator._distributed_dataset, epoch_iterator._current_iterator = distributed, None


def find_fit(model: Any) -> RunningFit | None:
    """Returns the fit() of `model` that runs the caller, or None."""
    local = _fit_variables(model)
    if not local:
        return None
    callbacks = local.get("callbacks")
    hooks = callbacks if hasattr(callbacks, "on_train_begin") else None
    return RunningFit(model, local["epoch_iterator"], hooks, local["epochs"], int(local["initial_epoch"]))


def current_logs(model: Any) -> dict[str, Any]:
    """The logs of fit after the last step: the very dict, which may be updated in place while it is still empty."""
    logs = _fit_variables(model).get("logs")
    if not isinstance(logs, dict):
        raise incompatible("fit() keeps no dict `logs`")
    return logs


def value_of_loss(logs: Any) -> float | None:
    """Returns the loss in the logs of a step, once it is computed; None if there is none."""
    loss = logs.get("loss") if isinstance(logs, dict) else None
    return None if loss is None else float(np.mean(np.asarray(loss)))


def draws_bar(model: Any) -> bool:
    """Whether Keras' progress bar may be in the current line of the output; it ends that line with its epoch."""
    callbacks = getattr(list_of_callbacks(model), "callbacks", ())
    loggers = [callback for callback in callbacks if isinstance(callback, keras.callbacks.ProgbarLogger)]
    return any(logger.verbose == 1 and logger.progbar is not None and logger.seen for logger in loggers)


def move_last(callback: Any) -> None:
    """Moves `callback` to the end of the CallbackList that is being given its model.

    Its hooks then run after all others', History included. A new list is assigned: changing the one that is
    being iterated would make the next callback miss its `set_model`.
    """
    owner = _calling_list(callback)
    if owner is not None:
        owner.callbacks = [c for c in owner.callbacks if c is not callback] + [callback]


def callbacks_being_set(callback: Any) -> list[Any] | None:
    """Returns all callbacks of the list that is calling `callback`'s hook, or None if not found."""
    owner = _calling_list(callback)
    return None if owner is None else list(owner.callbacks)


def _calling_list(callback: Any) -> Any:
    """Returns the CallbackList that is calling a hook of `callback`, or None if not found."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = _variables(frame).get("self")
        if isinstance(owner, keras.callbacks.CallbackList) and any(c is callback for c in owner.callbacks):
            return owner
        frame = frame.f_back
    return None


def still_runs(model: Any) -> Callable[[], bool]:
    """Returns a function that says, in any thread, whether the fit() of `model` that runs the caller has not ended.

    Of a loop of the user's that calls the callbacks itself, no end is known.
    """
    if not _fit_variables(model):
        return lambda: True
    thread, known = threading.get_ident(), weakref.ref(model)
    return lambda: bool(_fit_variables(known(), sys._current_frames().get(thread)))


def list_of_callbacks(model: Any) -> Any:
    """Returns the CallbackList of the running fit() of `model`; None before it exists."""
    return _fit_variables(model).get("callbacks")


def _fit_variables(model: Any, frame: FrameType | None = None) -> dict[str, Any]:
    """The local variables of the fit() of `model` that runs the caller, or another frame; empty if not found."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fit":
            local = _variables(frame)
            if local.get("self") is model and hasattr(local.get("epoch_iterator"), "_enumerate_iterator"):
                return local
        frame = frame.f_back
    return {}


def _variables(frame: FrameType) -> dict[str, Any]:
    """Returns the local variables of a function that runs.

    Before Python 3.13, the frame keeps what was looked at until the next look: an iterator over a past epoch, say.
    """
    seen = frame.f_locals
    local = dict(seen)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        seen.clear()
    return local

"""The seam into a running Keras 3 `fit()` on TensorFlow.

Callbacks see neither fit's data iterator nor the moment between two steps. Both are found here: walking up
from a callback's hook to fit's frame, and wrapping two methods on the **instance** of fit's epoch iterator.
Nothing global changes, and what is wrapped goes away with fit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Protocol

from keras_dist_callbacks.errors import CompatError

_WATCHED_HOOKS = ("on_epoch_begin", "on_epoch_end")


class StepControl(Protocol):
    """What wants to be told about fit's progress."""

    def before_epoch(self) -> None:
        """Before any callback's `on_epoch_begin`."""
        ...

    def enter_epoch(self, steps: Iterator[tuple[int, int, Any]]) -> None:
        """Before an epoch's first batch is asked for; may take steps away from the front."""
        ...

    def after_step(self, end_step: int) -> None:
        """After a step and all callbacks' `on_train_batch_end`, before the next batch."""
        ...

    def on_exception(self, error: BaseException) -> None:
        """An exception leaves the training loop; it is raised on afterwards."""
        ...


@dataclass(frozen=True)
class RunningFit:
    """What is known of a running fit().

    Attributes:
        model: The model in training.
        epoch_iterator: Its iterator over epochs.
        callback_list: The list whose hooks fit calls; None while that list is being built.
        epochs: fit's argument.
    """

    model: Any
    epoch_iterator: Any
    callback_list: Any
    epochs: int

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
        """Batches of one pass as the input itself tells; None where Keras learns it from the first epoch."""
        value = self.epoch_iterator.data_adapter.num_batches
        return None if value is None else int(value)

    @property
    def is_endless(self) -> bool:
        """Whether the input is a dataset that never ends."""
        import tensorflow as tf

        return isinstance(self.input, tf.data.Dataset) and int(self.input.cardinality()) == tf.data.INFINITE_CARDINALITY

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

    def set_dataset(self, dataset: Any) -> None:
        """Makes the next epoch iterate over another dataset; between epochs.

        Raises:
            ValueError: Its elements are not like those of the dataset that fit was given.
        """
        frame = _fit_frame(self.model)
        weights = None if frame is None else frame.f_locals.get("class_weight")
        if weights is not None:
            from keras.src.trainers.data_adapters import tf_dataset_adapter

            dataset = dataset.map(tf_dataset_adapter.make_class_weight_map_fn(weights))
        iterator = self.epoch_iterator
        distributed = self.model.distribute_strategy.experimental_distribute_dataset(dataset)
        iterator._distributed_dataset = distributed
        iterator._current_iterator = None
        iterator._steps_seen = 0
        cardinality = int(dataset.cardinality())
        iterator._num_batches = cardinality if cardinality >= 0 else None

    @property
    def builds_before_evaluating(self) -> bool:
        """Whether `evaluate` first creates an iterator to see a batch, as it does under a strategy."""
        return self.model._distribute_strategy is not None

    def validates(self, epoch: int) -> bool:
        """Whether validation follows this epoch."""
        frame = _fit_frame(self.model)
        if frame is None or frame.f_locals.get("validation_data") is None:
            return False
        return bool(self.model._should_eval(epoch, frame.f_locals["validation_freq"]))

    @property
    def validation_source(self) -> Any:
        """What validation reads, as the user passed it; None if there is none."""
        return self.argument("val_x")

    def argument(self, name: str) -> Any:
        """An argument or variable of the running fit(); None if it has none of that name."""
        frame = _fit_frame(self.model)
        return None if frame is None else frame.f_locals.get(name)

    @property
    def begins_iterator(self) -> bool:
        """Whether the epoch that is about to be read takes an iterator of which nothing was read."""
        iterator = self.epoch_iterator
        return not iterator.steps_per_epoch or iterator._current_iterator is None or iterator._steps_seen == 0

    def validation_iterator(self) -> Any:
        """The iterator over validation data, created as fit would at its first validation.

        None if there is none, or if it is of arrays, which have no state.
        """
        frame = _fit_frame(self.model)
        if frame is None or frame.f_locals.get("validation_data") is None:
            return None
        if getattr(self.model, "_eval_epoch_iterator", None) is None:
            local = frame.f_locals
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
            self.model._eval_epoch_iterator = iterator
        return self.model._eval_epoch_iterator

    @property
    def is_python_generator(self) -> bool:
        """Whether the input is a plain Python generator."""
        return type(self.epoch_iterator.data_adapter).__name__ == "GeneratorDataAdapter"

    @property
    def shuffles_py_dataset(self) -> bool:
        """Whether Keras shuffles the order of a PyDataset's batches, with Python's random state."""
        adapter = self.epoch_iterator.data_adapter
        return type(adapter).__name__ == "PyDatasetAdapter" and bool(adapter.shuffle)

    def start_at(self, epoch: int) -> None:
        """Makes fit begin at `epoch`; only before its epoch loop starts."""
        self.model._initial_epoch = epoch

    def forget_start(self) -> None:
        """A later fit() must not start at the epoch that this one was resumed at."""
        self.model._initial_epoch = None


def find_fit(model: Any) -> RunningFit | None:
    """The fit() of `model` that runs the caller, or None."""
    frame = _fit_frame(model)
    if frame is None:
        return None
    local = frame.f_locals
    callbacks = local.get("callbacks")
    return RunningFit(
        model, local["epoch_iterator"], callbacks if hasattr(callbacks, "on_train_begin") else None, local["epochs"]
    )


def current_logs(model: Any) -> dict[str, Any]:
    """The logs of fit after the last step: the very dict, which may be updated in place while it is still empty."""
    frame = _fit_frame(model)
    logs = None if frame is None else frame.f_locals.get("logs")
    if not isinstance(logs, dict):
        raise _incompatible("fit() keeps no dict `logs`")
    return logs


def move_last(callback: Any) -> None:
    """Moves `callback` to the end of the CallbackList that is being given its model.

    Its hooks then run after all others', History included. A new list is assigned: changing the one that is
    being iterated would make the next callback miss its `set_model`.
    """
    from keras.callbacks import CallbackList

    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, CallbackList) and any(c is callback for c in owner.callbacks):
            owner.callbacks = [c for c in owner.callbacks if c is not callback] + [callback]
            return
        frame = frame.f_back


def callbacks_being_set(callback: Any) -> list[Any] | None:
    """All callbacks of the list that is calling `callback`'s hook, or None if there is none."""
    from keras.callbacks import CallbackList

    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, CallbackList) and any(c is callback for c in owner.callbacks):
            return list(owner.callbacks)
        frame = frame.f_back
    return None


def control(fit: RunningFit, controller: StepControl) -> Callable[[], None]:
    """Puts `controller` between the steps of a running fit.

    Returns:
        A function that takes it away again.

    Raises:
        CompatError: Keras' epoch iterator is not as known.
    """
    iterator = fit.epoch_iterator
    for name in ("_enumerate_iterator", "catch_stop_iteration", "_current_iterator", "_num_batches"):
        if not hasattr(iterator, name):
            raise _incompatible(f"the epoch iterator has no {name}")
    enumerate_steps, catch = iterator._enumerate_iterator, iterator.catch_stop_iteration

    def enumerate_under_control() -> Generator[tuple[Any, ...], None, None]:
        steps, per_execution = enumerate_steps(), fit.steps_per_execution
        controller.enter_epoch(_triple(step, per_execution) for step in steps)
        for step in steps:
            yield step
            controller.after_step(step[0] + per_execution - 1)

    iterator._enumerate_iterator = enumerate_under_control
    iterator.catch_stop_iteration = lambda: _Watched(catch(), controller)
    hooks = _fit_callbacks(fit.model)
    for name in _WATCHED_HOOKS:
        before = controller.before_epoch if name == "on_epoch_begin" else _nothing
        setattr(hooks, name, _watched_hook(fit, getattr(hooks, name), controller, before))

    def undo() -> None:
        for owner, names in ((iterator, ("_enumerate_iterator", "catch_stop_iteration")), (hooks, _WATCHED_HOOKS)):
            for name in names:
                owner.__dict__.pop(name, None)  # the class' own shows again

    return undo


def _fit_callbacks(model: Any) -> Any:
    frame = _fit_frame(model)
    callbacks = None if frame is None else frame.f_locals.get("callbacks")
    if not hasattr(callbacks, "on_epoch_begin"):
        raise _incompatible("fit() keeps no list `callbacks` with epoch hooks")
    return callbacks


def _nothing() -> None:
    """Nothing to do."""


def _watched_hook(
    fit: RunningFit, hook: Callable[..., None], controller: StepControl, before: Callable[[], None]
) -> Callable[..., None]:
    def watched(*arguments: Any, **named: Any) -> None:
        fit.forget_start()  # fit has read it, and a callback that raises must not leave it to a later fit
        try:
            before()
            hook(*arguments, **named)
        except BaseException as error:
            controller.on_exception(error)
            raise

    return watched


def _triple(step: tuple[Any, ...], steps_per_execution: int) -> tuple[int, int, Any]:
    """First and last batch of a step, and its data; before 3.11 or so Keras told the first batch alone."""
    return step[0], step[0] + steps_per_execution - 1, step[-1]


class _Watched:
    """A context manager that shows the controller what leaves it."""

    def __init__(self, inner: Any, controller: StepControl) -> None:
        self._inner = inner
        self._controller = controller

    def __enter__(self) -> Any:
        return self._inner.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            swallowed: bool | None = self._inner.__exit__(kind, error, trace)
        except BaseException as raised:
            self._controller.on_exception(raised)
            raise
        if error is not None and not swallowed:
            self._controller.on_exception(error)
        return swallowed


def _fit_frame(model: Any) -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model:
            iterator = frame.f_locals.get("epoch_iterator")
            if hasattr(iterator, "_enumerate_iterator"):
                return frame
        frame = frame.f_back
    return None


def _incompatible(what: str) -> CompatError:
    import keras
    import tensorflow as tf

    return CompatError(
        f"Keras {keras.__version__} with TensorFlow {tf.__version__}: {what}, which exact resume needs; install a "
        "Keras that the README lists, or a newer keras-dist-callbacks"
    )

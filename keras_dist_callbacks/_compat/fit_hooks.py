"""Between the steps of a running Keras 3 `fit()`, and at what leaves it.

Callbacks see neither the moment between two steps nor an exception. Both are found by wrapping methods on the
**instances** of fit's iterators and of its list of callbacks. Nothing global changes, and what is wrapped goes away
with fit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Any, Protocol

import keras

from keras_dist_callbacks._compat import replay
from keras_dist_callbacks._compat.incompatible import incompatible
from keras_dist_callbacks._compat.running_fit import RunningFit, list_of_callbacks
from keras_dist_callbacks._compat.shortened import most_batches, shorten


class FitHooks(Protocol):
    """What is called as fit progresses."""

    def before_epoch(self) -> bool:
        """Before any callback's `on_epoch_begin`.

        Returns:
            Whether `enter_epoch` has something to say, which belongs before Keras' line about the epoch.
        """
        ...

    def enter_epoch(self, steps: Iterator[tuple[int, int, Any]]) -> bool:
        """Before an epoch's first batch is asked for; may take steps away from the front.

        Returns:
            Whether any step is to follow.
        """
        ...

    def skips(self, first: int, last: int) -> bool:
        """Whether a step, of these batches of the epoch, is read past and not trained."""
        ...

    def step_done(self, end_step: int, logs: Any) -> None:
        """After a step, before any callback's `on_train_batch_end`; tensors in `logs` may not be computed yet."""
        ...

    def batch_end(self) -> None:
        """After a step and all callbacks' `on_train_batch_end`; fit reads `stop_training` next."""
        ...

    def after_step(self) -> None:
        """Before the next batch, unless training was stopped."""
        ...

    def epoch_trained(self) -> None:
        """After an epoch's last step, before its validation and its end."""
        ...

    def test_batch_end(self) -> None:
        """After a step of fit's validation and all callbacks' `on_test_batch_end`."""
        ...

    def on_exception(self, error: BaseException, *, in_step: bool) -> None:
        """An exception leaves fit; it is raised on afterwards, unless this raises another in its place.

        Args:
            error: The exception.
            in_step: It came out of the train function, so that a step may be half done.
        """
        ...


def control(fit: RunningFit, listener: FitHooks) -> Callable[[], None]:
    """Puts `listener` between the steps of a running fit.

    Returns:
        A function that takes it away again.

    Raises:
        CompatError: Keras' epoch iterator or list of callbacks is not as known.
    """
    return _WrappedFit(fit, listener).attach()


class _WrappedFit:
    """The wrapped methods of one fit."""

    def __init__(self, fit: RunningFit, listener: FitHooks) -> None:
        self._fit = fit
        self._listener = listener
        self._callback_list = list_of_callbacks(fit.model)
        if not hasattr(self._callback_list, "on_epoch_begin"):
            raise incompatible("fit() keeps no list `callbacks` with epoch hooks")
        self._wrapped: list[tuple[Any, str]] = []
        self._in_step = False
        self._end_step = 0
        self._held: list[Callable[[], None]] = []

    def attach(self) -> Callable[[], None]:
        """Wraps; returns what takes it away."""
        iterator = self._fit.epoch_iterator
        for name in ("_enumerate_iterator", "catch_stop_iteration", "_current_iterator", "_num_batches"):
            if not hasattr(iterator, name):
                raise incompatible(f"the epoch iterator has no {name}")
        enumerate_steps, catch = iterator._enumerate_iterator, iterator.catch_stop_iteration
        self._wrap(iterator, "_enumerate_iterator", lambda: self._steps(enumerate_steps))
        self._wrap(iterator, "catch_stop_iteration", lambda: _Watched(catch(), self._leaves, self._epoch_trained))
        self._watch("on_epoch_begin", self._before_epoch)
        self._watch("on_epoch_end")
        self._watch("on_test_begin", self._watch_validation)
        self._watch("on_test_end")
        self._watch("on_train_end")
        self._watch_steps()
        return self._detach

    def _detach(self) -> None:
        while self._wrapped:
            owner, name = self._wrapped.pop()
            owner.__dict__.pop(name, None)  # the class' own shows again

    def _wrap(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        setattr(owner, name, replacement)
        self._wrapped.append((owner, name))

    def _steps(
        self, enumerate_steps: Callable[[], Iterator[tuple[Any, ...]]]
    ) -> Generator[tuple[Any, ...], None, None]:
        steps, per_execution = enumerate_steps(), self._fit.steps_per_execution
        # Before 3.11 or so Keras reported only the first batch of a step.
        runs = self._listener.enter_epoch((step[0], step[0] + per_execution - 1, step[-1]) for step in steps)
        while self._held:
            self._held.pop()()
        if not runs:
            return
        for step in steps:
            self._end_step = step[0] + per_execution - 1
            if self._listener.skips(step[0], self._end_step):
                replay.pull(step[-1], per_execution)
                continue
            yield step
            self._listener.after_step()

    def _before_epoch(self) -> None:
        """Keras' progress bar begins its epoch, with a line, after what `enter_epoch` says."""
        if not self._listener.before_epoch():
            return
        for callback in self._callback_list.callbacks:
            if type(callback) is keras.callbacks.ProgbarLogger:
                begin = functools.partial(self._hold, callback, callback.on_epoch_begin)
                self._wrap(callback, "on_epoch_begin", begin)

    def _hold(self, bar: Any, begin: Callable[..., None], *arguments: Any, **named: Any) -> None:
        def begin_now() -> None:
            del bar.on_epoch_begin
            seen = bar.seen
            begin(*arguments, **named)
            bar.seen = seen  # which was restored meanwhile

        self._held.append(begin_now)

    def _watch_steps(self) -> None:
        """Hooks around each batch, which are called between it and the check of `stop_training`."""
        callbacks, listener = self._callback_list, self._listener
        begin, end = callbacks.on_train_batch_begin, callbacks.on_train_batch_end
        test_end = callbacks.on_test_batch_end

        def batch_begin(batch: int, logs: Any = None) -> None:
            begin(batch, logs)
            self._in_step = True

        def batch_end(batch: int, logs: Any = None) -> None:
            self._in_step = False
            listener.step_done(self._end_step, logs)
            end(batch, logs)
            listener.batch_end()

        def test_batch_end(batch: int, logs: Any = None) -> None:
            test_end(batch, logs)
            listener.test_batch_end()

        self._wrap(callbacks, "on_train_batch_begin", batch_begin)
        self._wrap(callbacks, "on_train_batch_end", batch_end)
        self._wrap(callbacks, "on_test_batch_end", test_batch_end)

    def _watch(self, name: str, before: Callable[[], None] | None = None) -> None:
        hook = getattr(self._callback_list, name)

        def watched(*arguments: Any, **named: Any) -> None:
            # fit has read it, and a callback that raises must not leave it to a later fit
            self._fit.clear_initial_epoch()
            try:
                if before is not None:
                    before()
                hook(*arguments, **named)
            except BaseException as error:
                self._leaves(error)
                raise

        self._wrap(self._callback_list, name, watched)

    def _watch_validation(self) -> None:
        """Fit makes its iterator over validation data at the first validation."""
        iterator = getattr(self._fit.model, "_eval_epoch_iterator", None)
        if iterator is None or "catch_stop_iteration" in vars(iterator):
            return
        shorten(iterator, most_batches(self._fit.epoch_iterator))
        catch = iterator.catch_stop_iteration
        self._wrap(iterator, "catch_stop_iteration", lambda: _Watched(catch(), self._leaves))

    def _epoch_trained(self) -> None:
        self._in_step = False
        self._listener.epoch_trained()

    def _leaves(self, error: BaseException) -> None:
        in_step, self._in_step = self._in_step, False
        self._listener.on_exception(error, in_step=in_step)


class _Watched:
    """A context manager that reports the exception that leaves it, or None."""

    def __init__(
        self, inner: Any, leaves: Callable[[BaseException], None], ended: Callable[[], None] | None = None
    ) -> None:
        self._inner = inner
        self._leaves = leaves
        self._ended = ended

    def __enter__(self) -> Any:
        return self._inner.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            swallowed: bool | None = self._inner.__exit__(kind, error, trace)
            if self._ended is not None and (error is None or swallowed):
                self._ended()
        except BaseException as raised:
            self._leaves(raised)
            raise
        if error is not None and not swallowed:
            self._leaves(error)
        return swallowed

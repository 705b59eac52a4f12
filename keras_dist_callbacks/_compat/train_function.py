"""What the compiled train and test functions of a model hold on to, beside its own variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from keras_dist_callbacks._compat import graphs
from keras_dist_callbacks._compat.fit import RunningFit


def traces(model: Any) -> list[Any]:
    """The concrete functions of training steps; empty before the first step, and in eager mode."""
    return _concrete(getattr(model, "train_function", None))


def test_traces(model: Any) -> list[Any]:
    """The concrete functions of evaluation steps."""
    return _concrete(getattr(model, "test_function", None))


def trace_count(model: Any) -> int:
    """How often train and test steps were traced: cheap to ask, unlike the traces themselves."""
    functions = (getattr(model, name, None) for name in ("train_function", "test_function"))
    compiled = [None if function is None else _compiled(function) for function in functions]
    return sum(function.experimental_get_tracing_count() for function in compiled if function is not None)


def is_opaque(model: Any) -> bool:
    """Whether there is a train function, into which cannot be looked: one that the user's class made."""
    function = getattr(model, "train_function", None)
    return function is not None and not model.run_eagerly and _compiled(function) is None


def captured(functions: list[Any]) -> list[graphs.Resource]:
    """The variables that concrete functions captured, in the order of their traces."""
    return graphs.distinct(resource for function in functions for resource in graphs.resources(function))


def trace(fit: RunningFit) -> bool:
    """Traces the train function before the first step, so that what it captures and creates is there.

    The input is not touched: shapes and types do, or an empty dataset that is distributed as the input is. `fit()`
    does not trace again.

    Returns:
        Whether it could be traced.
    """
    model = fit.model
    model.make_train_function()
    function = _compiled(model.train_function)
    if function is None:
        return False
    function.get_concrete_function(_stand_in(fit))
    return True


def _stand_in(fit: RunningFit) -> Any:
    import tensorflow as tf

    data = fit.data
    if isinstance(data, tf.data.Dataset):
        return tf.data.IteratorSpec(data.element_spec)
    spec = getattr(data, "_original_dataset", None)
    spec = data.element_spec if spec is None else spec.element_spec
    empty = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=spec)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return iter(fit.model.distribute_strategy.experimental_distribute_dataset(empty.with_options(options)))


def _concrete(function: Any) -> list[Any]:
    compiled = None if function is None else _compiled(function)
    return [] if compiled is None else list(compiled._list_all_concrete_functions())


def _compiled(function: Callable[..., Any]) -> Any:
    """The `tf.function` that a train function of Keras calls, or is."""
    return next((f for f in _reachable(function) if hasattr(f, "_list_all_concrete_functions")), None)


def _reachable(function: Any) -> Iterator[Any]:
    yield function
    for cell in getattr(function, "__closure__", None) or ():
        yield cell.cell_contents

"""What TensorFlow read when it traced the step, and what it was changed to afterwards, are both restored."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import scipy.stats
import sklearn.utils
import tensorflow as tf

from tests.support import tiny


class Scaled(keras.Model):
    """Multiplies its loss by an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.drop, self.end = keras.layers.Dense(7), keras.layers.Dropout(0.3), keras.layers.Dense(1)
        self.scale = self.weight = 1.0

    def call(self, x: Any, training: bool = False) -> Any:
        return self.end(self.drop(self.hidden(x), training=training))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2) * self.scale * self.weight
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def scaled(kind: type[Scaled] = Scaled) -> keras.Model:
    def make() -> keras.Model:
        model = kind()
        model(tf.zeros((1, 6)))
        return model

    return tiny.compiled(make, lambda: keras.optimizers.SGD(0.05, momentum=0.9))


class AtEpoch(keras.callbacks.Callback):
    """Changes something when an epoch begins."""

    def __init__(self, acts: dict[int, Callable[[Any], Any]]) -> None:
        super().__init__()
        self.acts = acts

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch in self.acts:
            self.acts[epoch](self.model)


def to(name: str, value: Any, *, traces: bool = False, of: Callable[[Any], Any] = lambda model: model) -> Any:
    def act(model: Any) -> None:
        setattr(of(model), name, value)
        if traces:
            model.make_train_function(force=True)

    return act


def drop(model: Any) -> Any:
    return model.drop


CASES = {
    "changed after the trace": {1: to("scale", 3.0)},
    "changed before the trace, and back": {0: to("scale", 3.0), 1: to("scale", 1.0), 2: to("scale", 1.0, traces=True)},
    "one changed before the trace, another one after it": {0: to("scale", 3.0), 2: to("weight", 0.5)},
    "changed, and traced again": {1: to("scale", 3.0, traces=True)},
    "traced again, and changed": {1: to("scale", 3.0, traces=True), 2: to("scale", 5.0)},
    "rate of a dropout": {1: to("rate", 0.6, of=drop)},
    "rate of a dropout, traced again": {1: to("rate", 0.6, of=drop, traces=True)},
    "a layer is frozen": {1: to("trainable", False, of=lambda model: model.hidden, traces=True)},
    "momentum": {1: to("momentum", 0.5, of=lambda model: model.optimizer, traces=True)},
}


@pytest.mark.filterwarnings("ignore:the backup at .* holds values that are not finite:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:training continues with values that are not finite:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:training has ended with values that are not finite:RuntimeWarning")
@pytest.mark.parametrize("where", [(1, 2), (2, 3)], ids=["second epoch", "third epoch"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.in_gate(2)
def test_values_of_the_trace_and_later_ones_are_restored(name: str, where: tuple[int, int], tmp_path: Path) -> None:
    ended = tiny.resumes(tmp_path, scaled, at=where, callbacks=lambda: [AtEpoch(CASES[name])])
    model, expected = ended.model, ended.expected.model
    assert (model.scale, model.drop.rate) == (expected.scale, expected.drop.rate)


class Wrapping(keras.optimizers.SGD):
    """An optimizer of the user's that lets another one do its work."""

    def __init__(self, wrapped: Any) -> None:
        super().__init__(0.05)
        self.wrapped = wrapped

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        return self.wrapped.apply(grads, trainable_variables)


@pytest.mark.in_gate(1)
@pytest.mark.parametrize(
    ("wrap", "name"),
    [(lambda inner: keras.optimizers.LossScaleOptimizer(inner, 4.0), "inner_optimizer"), (Wrapping, "wrapped")],
    ids=["of Keras", "of the user"],
)
def test_settings_of_an_optimizer_within_another_are_restored(wrap: Any, name: str, tmp_path: Path) -> None:
    def wrapped() -> keras.Model:
        model = scaled()
        model.compile(wrap(keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=1.0)), "mse")
        return model

    def inner(model: Any) -> Any:
        return getattr(model.optimizer, name)

    def clips() -> keras.callbacks.Callback:
        return AtEpoch({1: to("clipnorm", 0.01, of=inner, traces=True)})

    ended = tiny.resumes(tmp_path, wrapped, at=(2, 1), callbacks=lambda: [clips()])
    assert inner(ended.model).clipnorm == 0.01


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("is_read", [True, False], ids=["read", "not read"])
def test_a_value_that_an_earlier_fit_has_traced_and_the_script_changed_is_a_condition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    def fits(*callbacks: Any) -> None:
        model = scaled()
        tiny.fit(model, tmp_path / "first", epochs=1, options={"delete_checkpoint": False})
        setattr(model, "scale" if is_read else "label", 3.0)
        tiny.fit(model, None, callbacks)

    restored = tiny.resumes(tmp_path / "second", run=fits, expects=None, alike=False).restored
    assert [("scale" in condition) for condition in restored.conditions] == [True] * is_read


RNG = np.random.default_rng(4)
PROBED: list[float] = []


class Noisy(keras.layers.Layer):
    """Its noise is a constant of each trace."""

    def __init__(self, draw: Callable[[], float], *, only_when: bool | None = None) -> None:
        super().__init__()
        self.draw, self.only_when = draw, only_when

    def call(self, x: Any, training: bool = False) -> Any:
        return x * (1.0 + self.draw()) if training == self.only_when or self.only_when is None else x


def noisy(draw: Callable[[], float], *, only_when: bool | None = None) -> keras.Model:
    model = tiny.model()
    model = keras.Sequential([keras.Input((6,)), Noisy(draw, only_when=only_when), *model.layers])
    model.compile("sgd", "binary_crossentropy")
    return model


def drawn_from_numpy() -> float:
    return float(np.random.random())


def drawn_from_python() -> float:
    return random.random()  # noqa: S311


def drawn_by_an_initializer() -> float:
    return keras.initializers.RandomNormal()((1,))[0]  # type: ignore[no-any-return]


def drawn_by_scipy() -> float:
    return float(scipy.stats.uniform.rvs())


def drawn_by_sklearn() -> float:
    return float(sklearn.utils.shuffle([0.1, 0.2, 0.3])[0])


def drawn_from_a_generator() -> float:
    return float(RNG.random())


def probe_of(model: keras.Model, draw: Callable[[], float]) -> Callable[[Any], Any]:
    @tf.function
    def probe(x: Any) -> Any:
        return tf.reduce_mean(x) * draw()

    return lambda _: PROBED.append(float(probe(tf.ones(3))))


def predicts(draw: Callable[[], float]) -> Callable[[Any], Any]:
    other = noisy(draw)
    return lambda _: PROBED.append(float(other.predict(tiny.data()[0], verbose=0).mean()))


DRAWS = {
    "the step": lambda draw: (noisy(draw, only_when=True), lambda _: draw()),
    "validation": lambda draw: (noisy(draw, only_when=False), lambda _: draw()),
    "a function of a callback": lambda draw: (tiny.model(), probe_of(tiny.model(), draw)),
    "predict of another model": lambda draw: (tiny.model(), predicts(draw)),
}


DRAWN = [drawn_from_numpy, drawn_from_python, drawn_from_a_generator]
DRAWN += [drawn_by_an_initializer, drawn_by_scipy, drawn_by_sklearn]


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize("where", DRAWS)
@pytest.mark.in_gate(1)
def test_random_numbers_that_a_trace_has_drawn_are_a_condition(where: str, draw: Any, tmp_path: Path) -> None:
    def fit(*callbacks: Any) -> None:
        keras.utils.set_random_seed(3)
        model, act = DRAWS[where](draw)
        x, y = tiny.data()
        acts = AtEpoch(dict.fromkeys(range(3), act))
        model.fit(x, y, batch_size=8, epochs=3, validation_data=(x, y), verbose=0, callbacks=[acts, *callbacks])

    tiny.resumes(tmp_path, run=fit, at=(1, 3), expects="exact if")


def drawing_at_epochs() -> list[Any]:
    return [AtEpoch(dict.fromkeys(range(3), lambda _: drawn_from_numpy()))]


def test_random_numbers_of_a_step_that_is_run_eagerly_are_none(tmp_path: Path) -> None:
    def make() -> keras.Model:
        return tiny.compiled(lambda: noisy(drawn_from_numpy), "sgd", "binary_crossentropy", run_eagerly=True)

    tiny.resumes(tmp_path, make, at=(1, 3), callbacks=drawing_at_epochs, validation_data=tiny.data())


def test_random_numbers_that_a_model_is_made_with_are_none(tmp_path: Path) -> None:
    def noise(draw: Any) -> keras.layers.Layer:
        layer = Noisy(lambda: layer.level)
        layer.level = draw()
        return layer

    def make() -> keras.Model:
        return tiny.compiled(lambda: tiny.sequential(noise(drawn_from_numpy), keras.layers.Dense(1)))

    tiny.resumes(tmp_path, make, at=(1, 3), callbacks=drawing_at_epochs)


SETTINGS = [1.0]


class SetsAround(keras.callbacks.Callback):
    """A value has another one only while a function of TensorFlow runs: `predict`, or one of the callback's own."""

    def __init__(self, *, own_function: bool, by: str = "assignment") -> None:
        super().__init__()
        self.warmth, self.own_function, self.found, self.by = 1.0, own_function, 0.0, by

    def put(self, value: float) -> None:
        if self.by == "assignment":
            self.warmth = self.model.scale = value
        elif self.by == "setattr":
            for owner, name in ((self, "warmth"), (self.model, "scale")):
                setattr(owner, name, value)
        else:
            SETTINGS[0] = value

    @tf.function
    def warmed(self, x: Any) -> Any:
        return tf.reduce_mean(x) * self.warmth * SETTINGS[0]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.put(1.0 + epoch)
        if self.own_function:
            self.found += float(self.warmed(tf.ones(3)))
        else:
            self.found += float(self.model.predict(tiny.data()[0], verbose=0).mean())
        self.put(1.0)


class Warm(Scaled):
    def call(self, x: Any, training: bool = False) -> Any:
        return super().call(x, training=training) * self.scale * SETTINGS[0]


@pytest.mark.in_gate(2)
@pytest.mark.parametrize("own_function", [False, True])
@pytest.mark.parametrize("by", ["assignment", "setattr", "item"])
def test_a_value_that_is_another_one_only_while_a_trace_reads_it_is_a_condition(
    own_function: bool, by: str, tmp_path: Path
) -> None:
    wanted = "SETTINGS" if by == "item" else "warmth" if own_function else "scale"
    sets = lambda: [SetsAround(own_function=own_function, by=by)]  # noqa: E731
    tiny.resumes(tmp_path, lambda: scaled(Warm), at=(2, 3), callbacks=sets, expects="exact if", saying=wanted)


class Buffered(keras.Model):
    """Its step uses two variables, models or layers that a callback lets change places."""

    def __init__(self, pair: list[Any]) -> None:
        super().__init__()
        self.end = keras.layers.Dense(1)
        self.pair = lambda: pair

    def call(self, x: Any) -> Any:
        return self.end(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        front, back = self.pair()
        if isinstance(front, keras.Layer):
            x = x + front(x) - 0.5 * back(x)
            front.kernel.assign(front.kernel * 0.9)
        else:
            front.assign(0.9 * front + 0.1 * tf.reduce_mean(x, 0))
            x = x - back
        return super().train_step((x, y))


def two_variables() -> list[Any]:
    return [tf.Variable(tf.zeros(6), trainable=False), tf.Variable(tf.ones(6), trainable=False)]


def two_layers() -> list[Any]:
    layers = [keras.layers.Dense(6, use_bias=False), keras.layers.Dense(6, use_bias=False)]
    for layer in layers:
        layer.build((None, 6))
    return layers


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("make", [two_variables, two_layers])
@pytest.mark.parametrize("traces", [True, False])
def test_objects_that_change_places_are_not_called_exact(make: Any, traces: bool, tmp_path: Path) -> None:
    def fit(*callbacks: Any) -> None:
        keras.utils.set_random_seed(3)
        pair = make()

        def act(model: Any) -> None:
            pair.reverse()
            if traces:
                model.make_train_function(force=True)

        model = Buffered(pair)
        model.compile("sgd", "mse")
        tiny.fit(model, None, [AtEpoch({1: act}), *callbacks])

    tiny.resumes(tmp_path, run=fit, at=(1, 3), expects="not exact", saying="have changed places")


@pytest.mark.chaos
def test_another_model_that_the_loss_uses_and_a_callback_trains_keeps_its_optimizer(tmp_path: Path) -> None:
    def fit(*callbacks: Any) -> list[keras.Model]:
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(3)
        x = tiny.data()[0]
        other = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, activation="sigmoid")])
        other.compile(keras.optimizers.Adam(0.05), "mse")

        def loss(truth: Any, found: Any) -> Any:
            return keras.losses.mean_squared_error(truth, found) * (0.5 + other(found)[:, 0])

        def act(model: Any) -> None:
            other.fit(model.predict(x, verbose=0), x[:, :1], batch_size=8, verbose=0)

        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("sgd", loss)
        tiny.fit(model, None, [AtEpoch(dict.fromkeys(range(3), act)), *callbacks])
        return [model, tiny.values(other)]  # its metrics begin again with each of its fits

    tiny.resumes(tmp_path, run=fit, at=(2, 3))


class Critic(keras.layers.Layer):
    """Not part of the model; its loss uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.judge, self.mean, self.level = keras.layers.Dense(1), keras.metrics.Mean(), 0

    def call(self, x: Any) -> Any:
        return self.judge(x)


class AlsoHolds:
    def __init__(self, layer: Any) -> None:
        self.layer = layer


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("held_by", ["the loss", "an object of the model's"])
def test_state_of_a_layer_that_the_step_uses_and_keras_does_not_list_comes_back(held_by: str, tmp_path: Path) -> None:
    def fit(*callbacks: Any) -> list[Any]:
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(3)
        critic = Critic()
        critic(tf.zeros((1, 1)))

        def act(batch: int, logs: Any) -> None:
            critic.mean.update_state(logs["loss"])
            model.optimizer.learning_rate = 0.1 * float(critic.mean.result())

        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.holder = AlsoHolds(critic) if held_by != "the loss" else None
        held = model.holder
        model.compile("sgd", lambda y, p: tf.square(y - p) + 0.1 * (critic if held is None else held.layer)(p))
        tiny.fit(model, None, [keras.callbacks.LambdaCallback(on_train_batch_end=act), *callbacks])
        return [model, float(critic.mean.result())]

    tiny.resumes(tmp_path, run=fit, at=(2, 3))


class Unfreezes(keras.callbacks.Callback):
    """Unfreezes one more layer in each epoch, without compile(): the step that is traced does not train it."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch:
            self.model.layers[epoch - 1].trainable = True


def test_a_step_is_traced_with_the_layers_frozen_as_they_were_also_where_validation_was_traced_later(
    tmp_path: Path,
) -> None:
    """The optimizer has no variables for the layers; validation has traced, too, when they were frozen."""

    def make() -> keras.Model:
        frozen = (keras.layers.Dense(5, trainable=False) for _ in range(3))
        return tiny.compiled(lambda: tiny.sequential(*frozen, keras.layers.Dense(1)), "adam")

    given: dict[str, Any] = {"epochs": 4, "validation_data": tiny.data(), "expects": None}
    ended = tiny.resumes(tmp_path, make, at=(2, 3), callbacks=lambda: [Unfreezes()], **given)
    assert ended.restored.verdict in ("exact", "exact if"), ended.restored


class Activates(keras.callbacks.Callback):
    """Gives a layer of Keras' another function; only the second epoch traces the step again."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.make_train_function(force=True)
        self.model.layers[0].activation = keras.activations.elu if epoch % 2 else keras.activations.relu


def test_another_activation_of_a_layer_is_named(tmp_path: Path) -> None:
    def make() -> keras.Model:
        return tiny.compiled(lambda: tiny.sequential(keras.layers.Dense(5, "relu"), keras.layers.Dense(1)))

    given: dict[str, Any] = {"epochs": 4, "expects": None, "alike": False}
    ended = tiny.resumes(tmp_path, make, at=(2, 3), callbacks=lambda: [Activates()], saying="activation", **given)
    assert ended.restored.verdict != "exact"

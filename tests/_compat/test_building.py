"""Unbuilt parts are reported by name and built from shapes, optimizers for the weights that a backup has slots of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf

from keras_dist_callbacks._compat import building


def part(name: str, **options: Any) -> keras.Sequential:
    return keras.Sequential([keras.layers.Dense(2, name="dense", **options)], name=name)


class Parts(keras.Model):
    """Without a call(): nothing ever builds it."""

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.parts = list(parts)


class OwnBuild(Parts):
    def build(self, input_shape: Any) -> None:
        self.scale = self.add_weight(shape=())


class OwnWeight(keras.layers.Layer):
    """It makes its weight when it is made, and has no build()."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = self.add_weight(shape=())


def built(name: str) -> keras.Sequential:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")], name=name)


def of_three() -> tuple[keras.Model, Any]:
    """Two networks and a clone of the first, whose weights have the names of the first's."""
    one = built("one")
    return Parts(one, built("two"), keras.models.clone_model(one)), keras.optimizers.Adam(name="adam")


def test_a_model_without_a_call_is_ready_when_its_layers_are() -> None:
    model = Parts(built("one"), OwnWeight(), keras.layers.Dropout(0.5))
    assert not model.built
    assert building.unbuilt_layers(model) == []


def test_the_layers_that_are_to_be_built_are_named() -> None:
    assert building.unbuilt_layers(Parts(built("one"), part("two"), keras.layers.Dense(1, name="three"))) == [
        "two",
        "dense",
        "three",
    ]


@pytest.mark.parametrize("model", [OwnBuild(), Parts(), OwnBuild(built("one"))])
def test_a_model_that_may_make_weights_itself_is_to_be_built(model: keras.Model) -> None:
    assert building.unbuilt_layers(model) == [model.name]


def test_a_built_model_is_ready_whatever_it_does_not_use() -> None:
    model = Parts(part("spare"))
    model.built = True
    assert building.unbuilt_layers(model) == []


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        (["adam/two_dense_kernel_momentum", "adam/two_dense_bias_momentum"], ["two/dense/kernel", "two/dense/bias"]),
        (["adam/two_dense_bias_momentum"], ["two/dense/bias"]),
        (["adam/iterations", "adam/learning_rate"], []),
        (["other/two_dense_kernel_momentum"], []),
        (["adam/one_dense_bias_momentum"], []),  # of the network or of its clone: who knows
        (["adam/one_dense_bias_momentum", "adam/one_dense_bias_momentum#1"], ["one/dense/bias"] * 2),
    ],
)
def test_an_optimizer_is_built_for_what_the_backup_names(saved: list[str], expected: list[str]) -> None:
    model, optimizer = of_three()
    building.build_optimizer_like(optimizer, model, saved)
    assert [v.path for v in optimizer._trainable_variables or ()] == expected
    assert optimizer.built == bool(expected)


def test_a_name_that_begins_another_is_not_taken_for_it() -> None:
    model = Parts(OwnWeight())
    scale, more = (model.parts[0].add_weight(shape=(), name=name) for name in ("scale", "scale_more"))
    optimizer = keras.optimizers.Adam(name="adam")
    building.build_optimizer_like(optimizer, model, [f"adam/{more.path.replace('/', '_')}_momentum"])
    assert [v is more for v in optimizer._trainable_variables] == [True]
    assert scale is not more


@pytest.mark.parametrize(("names", "expected"), [(["adam/iterations"], False), ([f"v{n}" for n in range(20)], True)])
def test_an_optimizer_that_was_never_used_stays_unbuilt(names: list[str], expected: bool) -> None:
    model = Parts(built("one"))
    model.compile(keras.optimizers.Adam(name="adam"))
    building.build_optimizer_if_saved(model, names, [])
    assert model.optimizer.built is expected


class Branches(keras.Model):
    """Takes a dict of two inputs, or both one after the other; may return a dict."""

    def __init__(self, *, named: bool = False) -> None:
        super().__init__()
        self.one, self.two, self.drop = keras.layers.Dense(2), keras.layers.Dense(2), keras.layers.Dropout(0.5)
        self.named = named

    def call(self, x: Any, training: bool) -> Any:
        one, two = (x["one"], x["two"]) if isinstance(x, dict) else x
        found = self.drop(self.one(one) + self.two(two), training=training)
        return {"sum": found, "gap": self.one(one) - self.two(two)} if self.named else found


X, Y, W = tf.TensorSpec((None, 3)), tf.TensorSpec((None, 2)), tf.TensorSpec((None,))
BOTH = {"loss": "mse", "metrics": ["mae"]}
OF_SHAPES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "Sequential without Input": (lambda: part("one"), (X, Y), BOTH),
    "dict": (Branches, ({"one": X, "two": X}, Y), BOTH),
    "tuple": (Branches, ((X, X), Y), BOTH),
    "sample weights": (lambda: part("one"), (X, Y, W), {"loss": "mse", "weighted_metrics": ["mae"]}),
    "several outputs": (
        lambda: Branches(named=True),
        ((X, X), {"sum": Y, "gap": Y}),
        {"loss": {"sum": "mse", "gap": "mae"}, "metrics": {"sum": ["mae"]}},
    ),
}


def unread(spec: Any) -> tf.data.Dataset:
    def read() -> Any:
        raise AssertionError("a batch was read")

    return tf.data.Dataset.from_generator(read, output_signature=spec)


def made(make: Any, **options: Any) -> keras.Model:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    model = make()
    model.compile("adam", run_eagerly=True, **options)
    return model


@pytest.mark.parametrize("name", OF_SHAPES)
def test_what_a_step_builds_is_built_from_shapes_alone_but_for_optimizers(name: str) -> None:
    make, spec, options = OF_SHAPES[name]
    stepped = made(make, **options)
    stepped.train_on_batch(*tf.nest.map_structure(lambda one: tf.zeros([4, *one.shape[1:]]), spec))
    model = made(make, **options)
    assert building.build_symbolically(SimpleNamespace(model=model, data=unread(spec))) is None
    assert len(model.optimizer.variables) == 2  # no slots
    assert [(v.path, v.shape) for v in model.variables] == [(v.path, v.shape) for v in stepped.variables]
    of_metrics = [[(v.path, v.shape) for metric in one.metrics for v in metric.variables] for one in (model, stepped)]
    assert of_metrics[0] == of_metrics[1]
    generators = [one.drop.seed_generator.state.numpy().tolist() for one in (model, made(make)) if hasattr(one, "drop")]
    assert generators[1:] == generators[:-1]


@pytest.mark.parametrize("model", [Parts(part("two")), part("one")], ids=["no call", "a shape that is not known"])
def test_why_it_cannot_be_built_is_returned(model: keras.Model) -> None:
    model.compile("sgd", "mse")
    data = unread((tf.TensorSpec(None), Y))
    assert isinstance(building.build_symbolically(SimpleNamespace(model=model, data=data)), Exception)
    assert not model.built
    model.later = keras.layers.Dense(1)  # a step of its own may still make state

"""Unbuilt parts are reported by name, and an optimizer is built for the weights that a backup has slots of."""

from __future__ import annotations

from typing import Any

import keras
import pytest

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

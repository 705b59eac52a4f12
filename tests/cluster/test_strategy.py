"""The strategy of each process, and clusters that a strategy does not join."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keras_dist_callbacks.cluster.strategy import make_strategy
from keras_dist_callbacks.errors import ConfigError
from tests.support.tf_config import WORKERS, config


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"kind": "parameter_server"}, "kind must be"),
        ({"kind": "multi_worker"}, "needs a TF_CONFIG"),
        ({"startup_timeout": 0}, "seconds above 0"),
    ],
)
def test_make_strategy_refuses_bad_arguments(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make_strategy(**arguments)


def test_one_process_gets_the_default_strategy() -> None:
    import tensorflow as tf

    assert make_strategy() is tf.distribute.get_strategy()


def test_an_evaluator_gets_the_default_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    monkeypatch.setenv("TF_CONFIG", json.dumps(config(WORKERS, "evaluator")))
    assert make_strategy() is tf.distribute.get_strategy()


def test_a_strategy_that_joins_nobody_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support import tiny

    monkeypatch.setenv("TF_CONFIG", json.dumps(config(WORKERS)))
    with pytest.raises(ConfigError, match="TF_CONFIG names 3 workers, but the model was made under"):
        tiny.fit(tiny.model(), tmp_path)

from pathlib import Path
from typing import Any

import keras
import pytest

from keras_dist_callbacks import ChiefOnly, ModelCheckpoint
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.state.callback_state import capture_callbacks, restore_callbacks
from tests.support.callback_helpers import X, Y, be_worker_1, fit, tiny_model

HOOKS = [name for name in dir(keras.callbacks.Callback) if name.startswith("on_")]


class Recorder(keras.callbacks.Callback):
    """Remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        for name in HOOKS:
            setattr(self, name, self._recorder(name))

    def _recorder(self, name: str) -> Any:
        return lambda *args, **kwargs: self.calls.append(name)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self.calls.append("set_model")

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self.calls.append("set_params")


class Stateful(keras.callbacks.Callback):
    value = 1

    def get_state(self) -> dict[str, Any]:
        return {"value": self.value}

    def set_state(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def run(callback: keras.callbacks.Callback) -> None:
    model = tiny_model()
    fit(model, callback, epochs=2, validation_data=(X, Y))
    model.evaluate(X, Y, verbose=0, callbacks=[callback])
    model.predict(X, verbose=0, callbacks=[callback])


@pytest.mark.slow
def test_on_the_chief_a_callback_gets_the_same_calls_as_without_the_wrapper() -> None:
    plain, wrapped = Recorder(), Recorder()
    run(plain)
    run(ChiefOnly(wrapped))
    assert wrapped.calls == plain.calls
    assert {"on_train_batch_end", "on_test_batch_end", "on_predict_batch_end", "set_params"} <= set(plain.calls)
    assert wrapped.model is not None
    assert wrapped.params is not None


@pytest.mark.slow
def test_on_other_workers_a_wrapped_callback_gets_no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    be_worker_1(monkeypatch)
    wrapped = Recorder()
    run(ChiefOnly(wrapped))
    assert wrapped.calls == []


def test_every_hook_of_keras_is_passed_on() -> None:
    wrapped = Recorder()
    wrapper = ChiefOnly(wrapped)
    for name in HOOKS:
        getattr(wrapper, name)(*([] if "begin" in name and "batch" not in name and "epoch" not in name else [0]))
    assert wrapped.calls == HOOKS


def test_a_file_is_written_by_the_chief_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(tiny_model(), ChiefOnly(keras.callbacks.CSVLogger(str(tmp_path / "chief.csv"))))
    be_worker_1(monkeypatch)
    fit(tiny_model(), ChiefOnly(keras.callbacks.CSVLogger(str(tmp_path / "worker.csv"))))
    assert [p.name for p in tmp_path.iterdir()] == ["chief.csv"]


def test_a_backup_keeps_the_state_of_the_wrapped_callback_under_its_own_name() -> None:
    plain, wrapped = Stateful(), ChiefOnly(Stateful())
    plain.value = 5
    state, tensors = capture_callbacks([plain])
    assert capture_callbacks([ChiefOnly(plain)]) == (state, tensors)
    assert restore_callbacks([wrapped], state, {}) == []
    assert wrapped.callback.value == 5


def test_elsewhere_a_backup_leaves_the_wrapped_callback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    be_worker_1(monkeypatch)
    wrapper = ChiefOnly(Stateful())
    assert capture_callbacks([wrapper]) == ({}, {})
    assert restore_callbacks([wrapper], {"Stateful()": {"value": 5}}, {}) == []
    assert wrapper.callback.value == 1


def test_what_is_not_a_callback_or_knows_about_workers_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs a keras\.callbacks\.Callback, got str"):
        ChiefOnly("callback")
    with pytest.raises(ConfigError, match="without ChiefOnly"):
        ChiefOnly(ModelCheckpoint(tmp_path / "m.keras"))

    class Mine(ModelCheckpoint):
        """A user's subclass."""

    with pytest.raises(ConfigError, match="Mine must run on every worker"):
        ChiefOnly(Mine(tmp_path / "m.keras"))


def test_keras_still_sees_which_hooks_are_overridden() -> None:
    class EpochsOnly(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            pass

    base = keras.callbacks.Callback()
    wrapper = ChiefOnly(EpochsOnly())
    assert wrapper.on_train_batch_end.__func__ is base.on_train_batch_end.__func__
    assert not wrapper.async_safe

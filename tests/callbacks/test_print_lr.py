import json
from pathlib import Path
from typing import Any

import keras
import pytest

from keras_dist_callbacks import PrintLR, TensorBoard
from keras_dist_callbacks._compat.model_parts import current_rates
from keras_dist_callbacks.base.errors import ConfigError
from tests.support.callback_helpers import be_worker_1, fit, tiny_model

pytestmark = pytest.mark.slow  # complete fits


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.removeprefix("kdc: ") for line in capsys.readouterr().out.splitlines() if line]


def halving() -> keras.optimizers.schedules.LearningRateSchedule:
    return keras.optimizers.schedules.ExponentialDecay(0.8, decay_steps=1, decay_rate=0.5)


def test_prints_the_rate_of_each_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    fit(tiny_model(), PrintLR(), epochs=2)
    assert lines(capsys) == ["Epoch 1: learning rate 0.01", "Epoch 2: learning rate 0.01"]


@pytest.mark.parametrize("first", [True, False])
def test_a_scheduler_callback_is_included_wherever_it_stands(capsys: pytest.CaptureFixture[str], first: bool) -> None:
    pair = [PrintLR(), keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))]
    fit(tiny_model(), *(pair if first else reversed(pair)), epochs=2)
    assert lines(capsys) == ["Epoch 1: learning rate 0.1", "Epoch 2: learning rate 0.05"]


@pytest.mark.parametrize("first", [True, False])
def test_a_reduction_at_an_epochs_end_shows_in_the_next_epoch(capsys: pytest.CaptureFixture[str], first: bool) -> None:
    reduce = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=100.0)
    pair = [PrintLR(), reduce]
    fit(tiny_model(), *(pair if first else reversed(pair)), epochs=3)
    assert [line.split()[-1] for line in lines(capsys)] == ["0.01", "0.01", "0.005"]


def test_a_schedule_shows_the_first_and_the_last_step_of_the_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    fit(tiny_model(keras.optimizers.SGD(halving())), PrintLR(), epochs=2)
    assert lines(capsys) == ["Epoch 1: learning rate 0.8 to 0.2", "Epoch 2: learning rate 0.1 to 0.025"]


def test_every_n_steps_counts_across_epochs(capsys: pytest.CaptureFixture[str]) -> None:
    fit(tiny_model(keras.optimizers.SGD(halving())), PrintLR(freq=2), epochs=2)
    assert lines(capsys) == [
        "Step 2: learning rate 0.4",
        "Step 4: learning rate 0.1",
        "Step 6: learning rate 0.025",
    ]


def test_several_steps_in_one_execution_print_once_each_time_the_number_is_passed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = tiny_model()
    model.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=3)
    seen: list[int] = []
    spy = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    fit(model, PrintLR(freq=2), spy, epochs=2)
    if seen == [0, 0]:
        pytest.skip("this Keras tells callbacks the first batch of an execution, not the last")
    assert lines(capsys) == ["Step 3: learning rate 0.01", "Step 6: learning rate 0.01"]


@pytest.mark.parametrize("wrap", [lambda o: o, keras.optimizers.LossScaleOptimizer])
def test_loss_scaling_is_seen_through(capsys: pytest.CaptureFixture[str], wrap: Any) -> None:
    model = tiny_model()
    model.compile(wrap(keras.optimizers.Adam(halving())), "mse")
    fit(model, PrintLR())
    assert lines(capsys) == ["Epoch 1: learning rate 0.8 to 0.2"]


def test_several_optimizers_are_shown_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        pytest.skip("this Keras has no MultiOptimizer")
    model = tiny_model()
    mapping = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.5, name="fast"))
    mapping[".*bias"] = keras.optimizers.SGD(halving(), name="slow")
    model.compile(keras.optimizers.MultiOptimizer(mapping), "mse")
    fit(model, PrintLR())
    (line,) = lines(capsys)
    assert "fast 0.5" in line
    assert "slow 0.8 to 0.2" in line


def test_only_the_chief_prints(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    be_worker_1(monkeypatch)
    fit(tiny_model(), PrintLR(), PrintLR(freq=1))
    assert lines(capsys) == []


@pytest.mark.parametrize("freq", ["epoch", 2])
def test_counting_continues_after_a_restart_within_an_epoch(capsys: pytest.CaptureFixture[str], freq: Any) -> None:
    def run(callback: PrintLR, *batches: tuple[int, int]) -> None:
        for epoch, batch in batches:
            if batch == 0:
                callback.on_epoch_begin(epoch)
            callback.on_train_batch_begin(batch)
            callback.on_train_batch_end(batch)
            if batch == 2:
                callback.on_epoch_end(epoch)

    model = tiny_model()
    whole, first, second = PrintLR(freq), PrintLR(freq), PrintLR(freq)
    for callback in (whole, first, second):
        callback.set_model(model)
        callback.on_train_begin()
    steps = [(e, b) for e in range(2) for b in range(3)]
    run(whole, *steps)
    expected = lines(capsys)
    run(first, *steps[:4])
    second.set_state(json.loads(json.dumps(first.get_state())))
    second.on_epoch_begin(1)
    run(second, *steps[4:])
    assert lines(capsys) == expected


@pytest.mark.parametrize("freq", [0, -1, True, 2.0, "batch"])
def test_wrong_frequencies_are_clear_errors(freq: Any) -> None:
    with pytest.raises(ConfigError, match="freq"):
        PrintLR(freq)


@pytest.mark.parametrize("first", [True, False])
def test_the_rate_goes_to_the_tensorboard_of_the_same_fit(tmp_path: Path, first: bool) -> None:
    from tests.callbacks.test_tensorboard import scalars

    pair = [PrintLR(log_to_tensorboard=True), TensorBoard(tmp_path)]
    fit(tiny_model(), *(pair if first else reversed(pair)), epochs=2)
    found = scalars(tmp_path / "train")["learning_rate"]
    assert [step for step, _ in found] == [0, 1]
    assert [value for _, value in found] == pytest.approx([0.01, 0.01])


def test_logging_without_a_tensorboard_is_an_error_before_the_first_step() -> None:
    model = tiny_model()
    with pytest.raises(ConfigError, match="needs a keras_dist_callbacks"):
        fit(model, PrintLR(log_to_tensorboard=True))
    assert int(model.optimizer.iterations) == 0


def test_rates_of_optimizers_with_one_name_stay_apart() -> None:
    class Pair:
        def __init__(self) -> None:
            self.optimizers = [keras.optimizers.SGD(r, name="sgd") for r in (0.1, 0.2)]

    assert current_rates(Pair()) == pytest.approx({"sgd_0": 0.1, "sgd_1": 0.2})


def test_lines_go_to_a_function_instead_of_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    given: list[str] = []
    fit(tiny_model(), PrintLR(print_fn=given.append), epochs=2)
    assert given == ["Epoch 1: learning rate 0.01", "Epoch 2: learning rate 0.01"]
    assert "learning rate" not in capsys.readouterr().out

"""What the package does with a store, from the first save to the resumed end, on every store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from tests.support import forget_runs, tiny
from tests.support.stores.fixtures import Place, Stores

pytestmark = pytest.mark.slow  # complete fits

Run = tuple[keras.Model, dict[str, list[float]]]


@pytest.mark.in_gate(1)
def test_an_interrupted_run_ends_as_if_it_had_not_been(place: Place, uninterrupted: Run) -> None:
    options = {"storage_options": place.options}
    tiny.interrupt(place.url, 1, 3, options=options)
    resumed, steps = tiny.model(), tiny.CountSteps()
    history = tiny.fit(resumed, place.url, [steps], options=options)
    assert steps.trained[0] == (1, 3)
    tiny.assert_same(resumed, uninterrupted[0])
    assert history.history == uninterrupted[1]
    assert place.open().files("commits") == []  # deleted at the end, as asked


@pytest.mark.in_gate(2)
@pytest.mark.filterwarnings("ignore:.*runs no step:RuntimeWarning")  # a rerun is in a process of its own
def test_a_finished_run_that_is_kept_runs_no_step_again(place: Place, uninterrupted: Run) -> None:
    options = {"storage_options": place.options, "delete_checkpoint": False}
    tiny.fit(tiny.model(), place.url, options=options, save_freq="epoch")
    forget_runs()
    again, steps = tiny.model(), tiny.CountSteps()
    history = tiny.fit(again, place.url, [steps], options=options, save_freq="epoch")
    assert steps.trained == []
    tiny.assert_same(again, uninterrupted[0])
    assert history.history == uninterrupted[1]


@pytest.mark.in_gate(2)
@pytest.mark.parametrize("weights_only", [False, True])
def test_a_checkpoint_comes_back_as_the_model(place: Place, weights_only: bool) -> None:
    name = "ckpt-{epoch:02d}" + (".weights.h5" if weights_only else ".keras")
    trained = tiny.model()
    callback = kdc.ModelCheckpoint(
        f"{place.url}/{name}", save_weights_only=weights_only, max_to_keep=2, storage_options=place.options
    )
    tiny.fit(trained, None, [callback])
    files = [f.name for f in place.open().files()]
    assert [f for f in files if not f.endswith(".json")] == [name.format(epoch=e) for e in (2, 3)]
    newest = kdc.latest_checkpoint(place.url, storage_options=place.options)
    assert newest is not None
    assert newest.endswith(name.format(epoch=3))
    loaded = kdc.make_or_restore_model(lambda: tiny.model(clear=False), place.url, storage_options=place.options)
    for ours, theirs in zip(loaded.get_weights(), trained.get_weights(), strict=True):
        assert (ours == theirs).all()


@pytest.mark.in_gate(2)
def test_event_files_arrive_readable(place: Place, tmp_path: Path) -> None:
    options: dict[str, Any] = {"storage_options": place.options} if place.options else {}
    tiny.fit(tiny.model(), None, [kdc.TensorBoard(place.url, update_freq=1, **options)])
    storage = place.open()
    (events,) = storage.files("train")
    storage.download(f"train/{events.name}", tmp_path / "events")
    records = list(tf.data.TFRecordDataset(str(tmp_path / "events")))
    tags = {v.tag for r in records for v in tf.compat.v1.Event.FromString(r.numpy()).summary.value}
    assert {"batch_loss", "epoch_loss"} <= tags


@pytest.mark.in_gate(1)
@pytest.mark.process
@pytest.mark.parametrize("scheme", ["az", "abfs"])
def test_both_names_of_azure_mean_the_same_place(
    stores: Stores, tmp_path: Path, scheme: str, uninterrupted: Run
) -> None:
    place = stores.place("az", tmp_path)
    options = {"storage_options": place.options}
    tiny.interrupt(place.url, 1, 2, options=options)
    resumed = tiny.model()
    tiny.fit(resumed, place.url.replace("az://", f"{scheme}://"), options=options)
    tiny.assert_same(resumed, uninterrupted[0])

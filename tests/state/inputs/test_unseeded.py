"""Orders of `tf.data` pipelines without a seed: which of them become repeatable, and which are named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks._compat import pipeline
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.state.inputs import unseeded
from keras_dist_callbacks.state.inputs.unseeded import Orders

ROWS = 24
Dataset = tf.data.Dataset


@pytest.fixture(autouse=True)
def no_seed() -> Iterator[None]:
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(7)


def rows() -> Dataset:
    return Dataset.range(ROWS)


def captured() -> Dataset:
    inner = rows().shuffle(ROWS)
    return Dataset.range(1).flat_map(lambda _: inner)


def from_python() -> Dataset:
    return rows().map(lambda row: tf.numpy_function(lambda value: value, [row], tf.int64))


def with_options() -> Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return rows().shuffle(ROWS).batch(4).with_options(options)


def numbered(dataset: Dataset) -> Dataset:
    """By operations that draw nothing of their own."""
    index = tf.random.experimental.index_shuffle
    return dataset.map(lambda row: index(row, [1, 2], ROWS - 1)).map(
        lambda row: row + tf.random.stateless_uniform((), tf.stack([1, row]), maxval=1, dtype=tf.int64)
    )


def ragged() -> Dataset:
    values = tf.RaggedTensor.from_row_lengths(tf.range(ROWS * 2, dtype=tf.int64), [2] * ROWS)
    return Dataset.from_tensor_slices(values).shuffle(ROWS)


REPEATABLE: dict[str, Callable[[], Dataset]] = {
    "shuffle": lambda: rows().shuffle(ROWS).batch(4),
    "a small buffer": lambda: rows().shuffle(5).batch(4),
    "cached before": lambda: rows().cache().shuffle(ROWS).batch(4).prefetch(2),
    "cached after": lambda: rows().shuffle(ROWS).cache().batch(4),
    "files cached after": lambda: rows().shuffle(ROWS).interleave(Dataset.from_tensors).cache().shuffle(ROWS).batch(4),
    "mapped in parallel": lambda: rows().shuffle(ROWS).map(lambda row: row + 0, num_parallel_calls=2).batch(4),
    "two shuffles": lambda: rows().shuffle(6).batch(2).shuffle(9).unbatch(),
    "zip": lambda: Dataset.zip((rows().shuffle(ROWS), rows())).map(lambda row, _: row),
    "repeat": lambda: rows().shuffle(ROWS).repeat(2).batch(4),
    "a part of each order": lambda: rows().shuffle(ROWS).take(20).batch(4),
    "interleave": lambda: Dataset.range(4).shuffle(4).interleave(lambda part: Dataset.range(part * 6, part * 6 + 6)),
    "sample_from_datasets": lambda: Dataset.sample_from_datasets([rows().shuffle(ROWS), rows()]).batch(4),
    "random": lambda: Dataset.random(rerandomize_each_iteration=True).take(9).map(lambda number: number % ROWS),
    "numpy_function": lambda: from_python().shuffle(ROWS),
    "from_generator": lambda: Dataset.from_generator(lambda: iter(range(ROWS)), output_types=tf.int64).shuffle(ROWS),
    "captured by a function": captured,
    "within a tensor": lambda: Dataset.from_tensors(rows().shuffle(ROWS)).flat_map(lambda inner: inner),
    "list_files": lambda: Dataset.list_files(str(Path(__file__).parent / "*.py")),
    "options": with_options,
    "numbers with seeds": lambda: numbered(rows().shuffle(ROWS)),
    "ragged": lambda: ragged().map(lambda row: row[0]),
}


SHARED: dict[str, Callable[[Dataset, Any], Dataset]] = {
    "map": lambda dataset, of: dataset.map(of),
    "parallel map": lambda dataset, of: dataset.map(of, num_parallel_calls=tf.data.AUTOTUNE),
    "interleave": lambda dataset, of: dataset.interleave(lambda row: Dataset.from_tensors(of(row)), cycle_length=2),
    "scan": lambda dataset, of: dataset.scan(np.int64(0), lambda last, row: (last + 1, of(row))),
}


@pytest.mark.parametrize("stage", SHARED)
def test_functions_share_the_scripts_variables_and_tables(stage: str) -> None:
    count, layer = tf.Variable(0, dtype=tf.int64), keras.layers.IntegerLookup(vocabulary=list(range(ROWS)))

    def counted(row: Any) -> Any:
        count.assign_add(1)
        return layer(row)

    orders = Orders(SHARED[stage](rows().shuffle(ROWS), counted), "input")
    assert orders.are_own
    assert orders.named == []
    made = orders.made(5)
    assert sorted(order(made)) == list(range(1, ROWS + 1))
    assert int(count) == ROWS


def order(dataset: Dataset) -> list[Any]:
    """The rows of a pass."""
    return [row for batch in dataset for row in np.asarray(batch).reshape(-1).tolist()]


@pytest.mark.parametrize("form", REPEATABLE)
def test_a_seed_gives_the_same_orders_again(form: str) -> None:
    made = []
    for _ in range(2):
        dataset = REPEATABLE[form]()
        order(dataset)  # what the script has read of its own dataset makes no difference
        orders = Orders(dataset, "input")
        assert orders.named == []
        made.append(orders.made(5))
    first, again = ([order(dataset) for _ in range(3)] for dataset in made)
    assert first == again
    is_kept = form in ("cached after", "sample_from_datasets")  # the choices of the latter are the same in each pass
    assert (first[0] == first[1] == first[2]) == (form == "cached after")
    assert is_kept or first[1] != first[2]
    assert order(Orders(REPEATABLE[form](), "input").made(6)) != first[0]
    assert made[0].options() == pipeline.original(made[0]).options()
    assert made[0].element_spec == dataset.element_spec


@pytest.mark.parametrize("form", ["shuffle", "cached after", "two shuffles", "zip", "interleave", "from_generator"])
def test_an_order_has_each_row_once(form: str) -> None:
    made = Orders(REPEATABLE[form](), "input").made(5)
    for _ in range(2):
        assert sorted(order(made)) == list(range(ROWS))


def test_a_seed_of_the_users_is_left_alone() -> None:
    dataset = rows().shuffle(ROWS, seed=3).batch(4)
    orders = Orders(dataset, "input")
    assert not orders.are_own
    assert orders.named == []
    assert orders.made(5) is dataset


def test_a_global_seed_is_left_alone() -> None:
    tf.random.set_seed(7)
    assert not Orders(rows().shuffle(ROWS), "input").are_own


def test_a_global_seed_that_came_after_the_dataset_is_none() -> None:
    dataset = rows().shuffle(ROWS)
    tf.random.set_seed(7)
    assert Orders(dataset, "input").are_own


def fixed() -> Dataset:
    return rows().shuffle(ROWS, reshuffle_each_iteration=False)


def on_file(directory: Path) -> Dataset:
    return rows().shuffle(ROWS).cache(str(directory / "cache"))


def views() -> Dataset:
    data = fixed()
    return Dataset.zip((data.map(lambda row: row), data.map(lambda row: row)))


def drawn_in_map(dataset: Dataset) -> Dataset:
    return dataset.map(lambda row: row + tf.random.uniform((), maxval=2, dtype=tf.int64, name="moved"))


def shared_random() -> Dataset:
    return Dataset.zip((rows(), Dataset.random())).filter(lambda _, number: number % 2 == 0)


NAMED: dict[str, tuple[Callable[[Path], Dataset], str, str]] = {
    "one order": (lambda _: fixed().batch(4), "fixed", "Dataset.shuffle(24, reshuffle_each_iteration=False)"),
    "a split": (lambda _: fixed().take(9), "fixed", "Dataset.shuffle(24, reshuffle_each_iteration=False)"),
    "two views": (lambda _: views(), "fixed", "Dataset.shuffle(24, reshuffle_each_iteration=False)"),
    "random numbers of two parts": (lambda _: shared_random(), "fixed", "Dataset.random()"),
    "a part of a cache": (lambda _: rows().shuffle(ROWS).cache().skip(4), "cache", "Dataset.shuffle(24)"),
    "a file": (on_file, "file", "Dataset.shuffle(24)"),
    "a snapshot": (lambda path: rows().shuffle(ROWS).snapshot(str(path)), "file", "Dataset.shuffle(24)"),
    "a shuffle in a function": (
        lambda _: Dataset.range(4).interleave(lambda _: rows().shuffle(9)),
        "function",
        "Dataset.shuffle(9)",
    ),
    "a function of a function": (
        lambda _: Dataset.range(2).flat_map(lambda _: rows().flat_map(lambda _: rows().shuffle(9))),
        "function",
        "Dataset.shuffle(9)",
    ),
    "random() in a function": (
        lambda _: Dataset.range(4).flat_map(lambda _: Dataset.random().take(2)),
        "function",
        "Dataset.random()",
    ),
    "numbers in a map": (lambda _: drawn_in_map(rows()), "numbers", "TensorFlow's RandomUniformInt (moved)"),
}


def codes(orders: Orders) -> list[str]:
    return [found.code for found in orders.named]


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=pytest.mark.finds(f"unseeded-{why}")) for form, (_, why, _) in NAMED.items()]
)
def test_what_another_dataset_may_share_or_cannot_be_counted_is_named(tmp_path: Path, form: str) -> None:
    make, why, call = NAMED[form]
    dataset = make(tmp_path)
    orders = Orders(dataset, "input")
    (named,) = orders.named
    assert (named.code, named.subject, named.detail[0]) == (f"unseeded-{why}", "input", call)
    assert orders.made(5) is dataset


@pytest.mark.finds("unseeded-numbers")
def test_an_order_is_kept_where_only_numbers_are_drawn_again() -> None:
    orders = Orders(drawn_in_map(rows().shuffle(ROWS)), "input")
    assert codes(orders) == ["unseeded-numbers"]
    assert orders.are_own


@pytest.mark.parametrize(("seed", "named"), [(None, ["unseeded-hidden"]), (7, [])])
def test_what_cannot_be_read_is_named_without_a_global_seed(seed: int | None, named: list[str]) -> None:
    tf.random.set_seed(seed)
    dataset = Dataset.from_tensor_slices([rows(), rows().shuffle(ROWS)]).interleave(lambda inner: inner)
    orders = Orders(dataset, "input")
    assert codes(orders) == named
    assert not orders.are_own


@pytest.mark.finds("unseeded")
def test_the_scripts_dataset_is_read_where_none_can_be_made_of_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> None:
        raise ValueError("unknown operation")

    monkeypatch.setattr(pipeline, "made_from_graph", fails)
    dataset = rows().shuffle(ROWS)
    orders = Orders(dataset, "input")
    assert orders.made(5) is dataset
    assert not orders.are_own
    assert orders.named == [Finding("unseeded", "input", ("Dataset.shuffle(24)", "Dataset.shuffle(24, seed=1)"))]


@pytest.mark.parametrize("rest", ["shuffle(24)", "numbers"])
def test_too_many_rows_are_not_copied(monkeypatch: pytest.MonkeyPatch, rest: str) -> None:
    monkeypatch.setattr(unseeded, "LARGEST", 1000)
    source = Dataset.from_tensor_slices(np.zeros((300,), "float32")).enumerate()
    dataset = source.shuffle(24) if "shuffle" in rest else source.map(lambda _, row: row + tf.random.uniform(()))
    orders = Orders(dataset, "input")
    assert [found.code.removeprefix("unseeded-") for found in orders.named] == [
        "large" if "shuffle" in rest else "numbers"
    ]
    assert orders.made(5) is dataset
    assert Orders(source.batch(4), "input").named == []


@pytest.mark.finds("unseeded-distributed", "unseeded-hidden")
def test_a_dataset_that_is_distributed_already_is_named() -> None:
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    given = strategy.experimental_distribute_dataset(rows().shuffle(ROWS).batch(4))
    assert codes(Orders(given, "input")) == ["unseeded-distributed"]
    assert Orders(strategy.experimental_distribute_dataset(rows().batch(4)), "input").named == []
    made = strategy.distribute_datasets_from_function(lambda context: rows().shuffle(ROWS).batch(4))
    assert codes(Orders(made, "input")) == ["unseeded-hidden"]


def test_parts_of_one_order_share_no_row_when_one_is_trained() -> None:
    whole = fixed()
    train, test = whole.take(18), whole.skip(18)
    read = order(Orders(train, "input").made(5))
    assert sorted(read + order(test)) == list(range(ROWS))


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        pytest.param(
            "large",
            "Dataset.shuffle(9) of the input has no seed, and the input has too many rows to be made again with one: "
            "its order is drawn again after a restart; write Dataset.shuffle(9, seed=1)",
            marks=pytest.mark.finds("unseeded-large"),
        ),
        pytest.param(
            "epoch",
            "Dataset.shuffle(9) of the input has no seed, and EpochDataset makes it for each epoch: its order is drawn "
            "again after a restart; write Dataset.shuffle(9, seed=epoch)",
            marks=pytest.mark.finds("unseeded-epoch"),
        ),
        (
            "loop",
            "Dataset.shuffle(9) of the input has no seed: its order is drawn again after a restart; write "
            "Dataset.shuffle(9, seed=1)",
        ),
    ],
)
def test_the_reason_names_the_stage_its_effect_and_the_line_to_write(why: Any, expected: str) -> None:
    (found,) = Orders(rows().shuffle(9), "input", why).named
    assert found.message == expected

"""Programs that make the batches of a training, as their documentation shows them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tests.support.program_case import BATCH, ROWS, SETTINGS, More, Program, Trained, digits, network, of_function, on


def balanced_batches(place: Path, more: More, seed: int | None = 7) -> Trained:
    from imblearn.keras import BalancedBatchGenerator

    return on(BalancedBatchGenerator(*digits(), batch_size=40, random_state=seed), more)


def balanced_generator(place: Path, more: More) -> Trained:
    from imblearn.keras import balanced_batch_generator

    generator, steps = balanced_batch_generator(*digits(), batch_size=40, random_state=7)
    return on(generator, more, steps_per_epoch=steps)


class Augmented(keras.utils.PyDataset):
    """Images through a transform that draws random numbers."""

    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform, (self.images, self.labels) = transform, digits()

    def __len__(self) -> int:
        return len(self.images) // BATCH

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        images = [self.transform(image=image.reshape(8, 8, 1))["image"].reshape(64) for image in self.images[rows]]
        return np.stack(images), self.labels[rows]


class AugmentedFromState(Augmented):
    """It says where its transforms' random numbers are: each has generators of its own."""

    def get_state(self) -> dict[str, Any]:
        return {str(number): [g.bit_generator.state, p.getstate()] for number, (g, p) in enumerate(self._sources())}

    def set_state(self, state: Any) -> None:
        for number, (generator, python) in enumerate(self._sources()):
            generator.bit_generator.state, (version, numbers, spare) = state[str(number)]
            python.setstate((version, tuple(numbers), spare))

    def _sources(self) -> list[tuple[Any, Any]]:
        return [(t.random_generator, t.py_random) for t in (self.transform, *self.transform.transforms)]


def albumentations(place: Path, more: More, made: type[Augmented] = Augmented) -> Trained:
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
    import albumentations as transforms

    chain = [transforms.HorizontalFlip(p=0.5), transforms.RandomBrightnessContrast(p=0.5)]
    return on(made(transforms.Compose(chain, seed=7)), more)


def grain_loader(place: Path, more: More) -> Trained:
    import grain.python as grain

    images, labels = digits()
    source = list(zip(images, labels, strict=True))
    sampler = grain.IndexSampler(ROWS, grain.NoSharding(), shuffle=True, num_epochs=1, seed=7)
    return on(grain.DataLoader(data_source=source, sampler=sampler, operations=[grain.Batch(BATCH)]), more)


def grain_dataset(place: Path, more: More) -> Trained:
    import grain

    images, labels = digits()
    dataset = grain.MapDataset.source(list(zip(images, labels, strict=True))).seed(7).shuffle()
    return on(dataset.batch(BATCH), more)


def grain_iterable(place: Path, more: More) -> Trained:
    import grain

    images, labels = digits()
    dataset = grain.MapDataset.source(list(zip(images, labels, strict=True))).seed(7).shuffle()
    return on(dataset.to_iter_dataset().batch(BATCH), more)


def hugging_face(place: Path, more: More, **options: Any) -> Trained:
    from datasets import Dataset

    images, labels = digits()
    dataset = Dataset.from_dict({"image": images, "label": labels})
    return on(dataset.to_tf_dataset(batch_size=BATCH, columns="image", label_cols="label", **options), more)


def hugging_face_numpy(place: Path, more: More) -> Trained:
    from datasets import Dataset

    images, labels = digits()
    dataset = Dataset.from_dict({"image": images, "label": labels}).with_format("numpy")
    model = network()
    return model, model.fit(dataset["image"][:], dataset["label"][:], batch_size=BATCH, callbacks=[*more], **SETTINGS)


def polars_generator(place: Path, more: More) -> Trained:
    import polars as pl

    images, labels = digits()
    frame = pl.DataFrame(images).with_columns(pl.Series("label", labels))

    def batches() -> Any:
        while True:
            for part in frame.sample(fraction=1.0, shuffle=True).iter_slices(BATCH):
                yield part.drop("label").to_numpy(), part["label"].to_numpy()

    pl.set_random_seed(7)
    return on(batches(), more, steps_per_epoch=ROWS // BATCH)


def pandas_generator(place: Path, more: More) -> Trained:
    import pandas as pd

    images, labels = digits()
    frame = pd.DataFrame(images).assign(label=labels)

    def batches() -> Any:
        while True:
            mixed = frame.sample(frac=1.0)
            for begin in range(0, ROWS, BATCH):
                part = mixed.iloc[begin : begin + BATCH]
                yield part.drop(columns="label").to_numpy(), part["label"].to_numpy()

    return on(batches(), more, steps_per_epoch=ROWS // BATCH)


def pandas_frames(place: Path, more: More) -> Trained:
    import pandas as pd

    (images, labels), model = digits(), network()
    options = {"batch_size": BATCH, **SETTINGS}
    return model, model.fit(pd.DataFrame(images), pd.Series(labels), callbacks=[*more], **options)


def pyarrow_batches(place: Path, more: More) -> Trained:
    import pyarrow as pa
    import tensorflow as tf

    images, labels = digits()
    table = pa.table({"image": list(images), "label": labels})

    def rows() -> Any:
        for part in table.to_batches(max_chunksize=BATCH):
            yield np.stack(part["image"].to_numpy(zero_copy_only=False)), part["label"].to_numpy()

    signature = (tf.TensorSpec((None, 64), "float32"), tf.TensorSpec((None,), "int64"))
    return on(tf.data.Dataset.from_generator(rows, output_signature=signature).shuffle(10, seed=3), more)


FED: dict[str, Program] = {
    "BalancedBatchGenerator": Program("imbalanced-learn", "imblearn", "exact", balanced_batches),
    "balanced_batch_generator": Program("imbalanced-learn", "imblearn", "exact if", balanced_generator),
    "albumentations": Program(
        "albumentations", "albumentations", "exact if", albumentations, says="PyDataset Augmented"
    ),
    "albumentations, with its state": Program(
        "albumentations", "albumentations", "exact", of_function(albumentations, made=AugmentedFromState)
    ),
    "grain.DataLoader": Program("grain", "grain", "exact if", grain_loader),
    "grain.MapDataset": Program("grain", "grain", "exact if", grain_dataset),
    "grain.IterDataset": Program("grain", "grain", "exact if", grain_iterable),
    "datasets": Program("datasets", "datasets", "exact if", hugging_face),
    "datasets, shuffled": Program("datasets", "datasets", "exact if", of_function(hugging_face, shuffle=True)),
    "datasets as numpy": Program("datasets", "datasets", "exact", hugging_face_numpy),
    "polars, a generator": Program("polars", "polars", "exact if", polars_generator),
    "pandas, a generator": Program("pandas", "pandas", "exact if", pandas_generator),
    "pandas": Program("pandas", "pandas", "exact", pandas_frames),
    "pyarrow, from_generator": Program("pyarrow", "pyarrow", "exact if", pyarrow_batches),
}

"""Trains a small BERT of keras_hub on sentences, its preprocessing included; killed and started again, it resumes.

    python examples/keras_hub_classifier.py runs/bert

The model begins with random weights and a vocabulary made here, so that nothing is downloaded; a preset's works alike.
Sentences are the pixels of digits as words. One line is printed for each epoch, with its loss.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import keras
import keras_hub
from sklearn.datasets import load_digits

import keras_dist_callbacks as kdc

ROWS, WORDS = 300, 17


def load_data() -> tuple[list[str], Any]:
    images, labels = load_digits(return_X_y=True)
    return [" ".join(f"w{int(pixel)}" for pixel in image[::2]) for image in images[:ROWS]], labels[:ROWS]


def make_model() -> Any:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(WORDS))]
    tokenizer = keras_hub.models.BertTokenizer(vocabulary=vocabulary)
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=len(vocabulary), num_layers=2, num_heads=2, hidden_dim=32, intermediate_dim=64,
        max_sequence_length=40,
    )  # fmt: skip
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=40)
    model = keras_hub.models.BertTextClassifier(backbone, num_classes=10, preprocessor=preprocessor)
    model.compile(keras.optimizers.AdamW(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def train(directory: str, extra_callbacks: Sequence[Any] = ()) -> list[str]:
    """Trains, or resumes; returns what is printed."""
    keras.utils.set_random_seed(7)
    model = make_model()
    backup = kdc.BackupAndRestore(
        directory, save_freq=2, delete_checkpoint=False, write_options=kdc.WriteOptions(when_busy="wait")
    )
    history = model.fit(*load_data(), batch_size=50, epochs=3, verbose=0, callbacks=[*extra_callbacks, backup])
    return [f"epoch {number}: loss {loss!r}" for number, loss in enumerate(history.history["loss"], 1)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where the backup goes")
    print("\n".join(train(parser.parse_args().directory)))

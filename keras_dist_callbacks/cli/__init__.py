"""`kdc`: inspects backups and checkpoints, and checks stores, from the shell.

    inventory   what a directory holds, read once, and whether a run seems to be writing
    listing, details, verifying, pruning, doctor             what each command finds, as plain dataclasses
    render, formatting, output                               how that looks
    app                                                      the commands and their options

Nothing here imports TensorFlow or Keras, and nothing claims a directory, so it can be used next to a run.
"""

from __future__ import annotations


def main() -> None:
    """Runs the command line."""
    from keras_dist_callbacks.cli.app import app

    app(prog_name="kdc")

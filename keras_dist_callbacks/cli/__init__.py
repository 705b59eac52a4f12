"""`kdc`: looks at backups and checkpoints, and checks stores, from the shell.

    inventory   what a directory holds, read once            liveness   whether a run seems to be writing
    listing, details, verifying, pruning, doctor             what each command finds, as plain dataclasses
    render, human, output                                    how that looks
    app                                                      the commands and their options

Nothing here imports TensorFlow or Keras, and nothing claims a directory, so that it can be used beside a run.
"""

from __future__ import annotations


def main() -> None:
    """Runs the command line."""
    from keras_dist_callbacks.cli.app import app

    app(prog_name="kdc")

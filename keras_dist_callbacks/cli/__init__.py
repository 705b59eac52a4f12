"""`kdc`: inspects backups and checkpoints, and checks stores, from the shell.

    formatting  how sizes, ages and tables look
    inventory   what a directory holds, read once, and whether a run seems to be writing
    output      opens a directory, and prints results without credentials, for people or as JSON
    listing, details, upkeep, doctor, exporting              what each command finds, and how it is shown
    app         the commands and their options

Nothing here imports TensorFlow or Keras, and nothing claims a directory, so it can be used next to a run.
"""

from __future__ import annotations


def main() -> None:
    """Runs the command line."""
    from keras_dist_callbacks.cli.app import app

    app(prog_name="kdc")

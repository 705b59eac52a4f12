"""Fault tolerance for Keras 3 + TensorFlow training.

Importing this package imports neither Keras nor TensorFlow and has no side effects: names are loaded when
they are first used (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_dist_callbacks.base.lazy import exports

__version__ = "0.1.0"

_HOME = {
    "BackupAndRestore": "keras_dist_callbacks.callbacks.backup_and_restore",
    "BackupError": "keras_dist_callbacks.base.errors",
    "BackupMismatchError": "keras_dist_callbacks.base.errors",
    "Checkpointer": "keras_dist_callbacks.run.checkpointer",
    "ChiefOnly": "keras_dist_callbacks.callbacks.chief_only",
    "ClusterError": "keras_dist_callbacks.base.errors",
    "ClusterOptions": "keras_dist_callbacks.cluster.timeouts",
    "ClusterTimeoutError": "keras_dist_callbacks.base.errors",
    "CompatError": "keras_dist_callbacks.base.errors",
    "ConfigError": "keras_dist_callbacks.base.errors",
    "DamagedBackupError": "keras_dist_callbacks.base.errors",
    "Diverged": "keras_dist_callbacks.base.errors",
    "Event": "keras_dist_callbacks.run.engine.events",
    "EpochDataset": "keras_dist_callbacks.callbacks.epoch_dataset",
    "FencedError": "keras_dist_callbacks.base.errors",
    "KdcError": "keras_dist_callbacks.base.errors",
    "ModelCheckpoint": "keras_dist_callbacks.callbacks.model_checkpoint",
    "PeerLostError": "keras_dist_callbacks.base.errors",
    "Preempted": "keras_dist_callbacks.base.errors",
    "PrintLR": "keras_dist_callbacks.callbacks.print_lr",
    "Restored": "keras_dist_callbacks.backups.restored",
    "RetryPolicy": "keras_dist_callbacks.storage.retry",
    "ShutdownOptions": "keras_dist_callbacks.options",
    "Rollback": "keras_dist_callbacks.options",
    "SidecarEvaluator": "keras_dist_callbacks.evaluation.sidecar_evaluator",
    "StorageError": "keras_dist_callbacks.base.errors",
    "TensorBoard": "keras_dist_callbacks.callbacks.tensorboard",
    "WriteOptions": "keras_dist_callbacks.options",
    "advanced": "keras_dist_callbacks.advanced",
    "aws_notice": "keras_dist_callbacks.run.shutdown.preemption_notice",
    "best_checkpoint": "keras_dist_callbacks.checkpoints.restore",
    "gce_notice": "keras_dist_callbacks.run.shutdown.preemption_notice",
    "latest_checkpoint": "keras_dist_callbacks.checkpoints.restore",
    "load_backup": "keras_dist_callbacks.run.load_backup",
    "make_or_restore_model": "keras_dist_callbacks.checkpoints.restore",
    "make_strategy": "keras_dist_callbacks.cluster.strategy",
    "plot_lr": "keras_dist_callbacks.callbacks.plot_lr",
    "restartable": "keras_dist_callbacks.launch.restart",
    "restored_from": "keras_dist_callbacks.checkpoints.restore",
    "rollback": "keras_dist_callbacks.cli.rollback",
}

if TYPE_CHECKING:
    from keras_dist_callbacks import advanced as advanced
    from keras_dist_callbacks.backups.restored import Restored as Restored
    from keras_dist_callbacks.base.errors import BackupError as BackupError
    from keras_dist_callbacks.base.errors import BackupMismatchError as BackupMismatchError
    from keras_dist_callbacks.base.errors import ClusterError as ClusterError
    from keras_dist_callbacks.base.errors import ClusterTimeoutError as ClusterTimeoutError
    from keras_dist_callbacks.base.errors import CompatError as CompatError
    from keras_dist_callbacks.base.errors import ConfigError as ConfigError
    from keras_dist_callbacks.base.errors import DamagedBackupError as DamagedBackupError
    from keras_dist_callbacks.base.errors import Diverged as Diverged
    from keras_dist_callbacks.base.errors import FencedError as FencedError
    from keras_dist_callbacks.base.errors import KdcError as KdcError
    from keras_dist_callbacks.base.errors import PeerLostError as PeerLostError
    from keras_dist_callbacks.base.errors import Preempted as Preempted
    from keras_dist_callbacks.base.errors import StorageError as StorageError
    from keras_dist_callbacks.callbacks.backup_and_restore import BackupAndRestore as BackupAndRestore
    from keras_dist_callbacks.callbacks.chief_only import ChiefOnly as ChiefOnly
    from keras_dist_callbacks.callbacks.epoch_dataset import EpochDataset as EpochDataset
    from keras_dist_callbacks.callbacks.model_checkpoint import ModelCheckpoint as ModelCheckpoint
    from keras_dist_callbacks.callbacks.plot_lr import plot_lr as plot_lr
    from keras_dist_callbacks.callbacks.print_lr import PrintLR as PrintLR
    from keras_dist_callbacks.callbacks.tensorboard import TensorBoard as TensorBoard
    from keras_dist_callbacks.checkpoints.restore import best_checkpoint as best_checkpoint
    from keras_dist_callbacks.checkpoints.restore import latest_checkpoint as latest_checkpoint
    from keras_dist_callbacks.checkpoints.restore import make_or_restore_model as make_or_restore_model
    from keras_dist_callbacks.checkpoints.restore import restored_from as restored_from
    from keras_dist_callbacks.cli.rollback import rollback as rollback
    from keras_dist_callbacks.cluster.strategy import make_strategy as make_strategy
    from keras_dist_callbacks.cluster.timeouts import ClusterOptions as ClusterOptions
    from keras_dist_callbacks.evaluation.sidecar_evaluator import SidecarEvaluator as SidecarEvaluator
    from keras_dist_callbacks.launch.restart import restartable as restartable
    from keras_dist_callbacks.options import Rollback as Rollback
    from keras_dist_callbacks.options import ShutdownOptions as ShutdownOptions
    from keras_dist_callbacks.options import WriteOptions as WriteOptions
    from keras_dist_callbacks.run.checkpointer import Checkpointer as Checkpointer
    from keras_dist_callbacks.run.engine.events import Event as Event
    from keras_dist_callbacks.run.load_backup import load_backup as load_backup
    from keras_dist_callbacks.run.shutdown.preemption_notice import aws_notice as aws_notice
    from keras_dist_callbacks.run.shutdown.preemption_notice import gce_notice as gce_notice
    from keras_dist_callbacks.storage.retry import RetryPolicy as RetryPolicy
else:
    __getattr__, __dir__ = exports(globals(), _HOME)

__all__ = [*_HOME, "__version__"]

"""Every exception that this package raises on purpose.

Each subclasses a built-in, so that existing `except ValueError` or `except OSError` code keeps working.
"""


class KdcError(Exception):
    """Base class of all errors raised by keras_dist_callbacks."""


class ConfigError(KdcError, ValueError):
    """An argument, TF_CONFIG or an environment is wrong; raised before training starts."""


class CompatError(KdcError, RuntimeError):
    """The installed Keras or TensorFlow differs from what the package knows how to work with."""


class ClusterError(KdcError, RuntimeError):
    """The workers of a cluster could not do something together."""


class ClusterTimeoutError(ClusterError, TimeoutError):
    """A worker did not answer in time; the message names it."""


class PeerLostError(ClusterError, ConnectionError):
    """Another worker, or the coordination service, is gone; the job must be restarted."""


class StorageError(KdcError, OSError):
    """A store could not be read or written, after all retries."""


class BackupError(KdcError, RuntimeError):
    """A backup could not be written, found, verified or restored."""


class DamagedBackupError(BackupError):
    """Bytes in the store differ from what their manifest says."""


class BackupMismatchError(BackupError, ValueError):
    """A backup belongs to another model, callback list or format version."""


class FencedError(BackupError):
    """A newer run owns the backup directory; this one must stop."""

"""What an engine needs to know of one run's arguments."""

from __future__ import annotations

from dataclasses import dataclass, field

from keras_dist_callbacks import arguments
from keras_dist_callbacks.options import WriteOptions


@dataclass(frozen=True)
class EngineOptions:
    """How the backups of one run are written.

    Attributes:
        double_checkpoint: A commit shares no blob with the one before it.
        progress: Print what happens, and show long uploads on a terminal.
        write: The options of writing.

    Raises:
        ConfigError: A value is wrong.
    """

    double_checkpoint: bool = False
    progress: bool = False
    write: WriteOptions = field(default_factory=WriteOptions)

    def __post_init__(self) -> None:
        arguments.keep(self, double_checkpoint=arguments.flag("double_checkpoint", self.double_checkpoint))

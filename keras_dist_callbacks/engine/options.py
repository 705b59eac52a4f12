"""How backups are written."""

from __future__ import annotations

from dataclasses import dataclass

from keras_dist_callbacks import arguments
from keras_dist_callbacks.cluster.cluster import PATIENCE_SECONDS


@dataclass(frozen=True)
class EngineOptions:
    """How backups are written.

    Attributes:
        double_checkpoint: A commit shares no blob with the one before it.
        when_busy: When the one before is still being written, let the newest backup stand in line and `"skip"` those
            that it overtakes, or let training `"wait"`.
        max_failed_saves: Backups that may fail in a row before training ends with the reason; None: any number.
        timeout: Seconds to wait for another worker that lives but does not answer.
        progress: Print what happens, and show long uploads on a terminal.
        max_local_state: Bytes of worker-local tensors above which a worker's are left out of a backup.
        max_held_bytes: Bytes of states that backups on their way may hold; where two do not fit, none stands in line.
            None: half of the memory that is free at the start, shared by the workers of a host. The least of all
            workers counts.

    Raises:
        ConfigError: A value is wrong.
    """

    double_checkpoint: bool = False
    when_busy: str = "skip"
    max_failed_saves: int | None = 10
    timeout: float = PATIENCE_SECONDS
    progress: bool = False
    max_local_state: int = 64 * 2**20
    max_held_bytes: int | None = None

    def __post_init__(self) -> None:
        limit, default = self.max_failed_saves, type(self)
        if limit is not None:
            also = "None for any number"
            limit = arguments.count("max_failed_saves", limit, least=1, also=also, default=default.max_failed_saves)
        held = self.max_held_bytes
        if held is not None:
            held = arguments.count("max_held_bytes", held, of="bytes", also="None for half of the free memory")
        arguments.keep(
            self,
            max_held_bytes=held,
            double_checkpoint=arguments.flag("double_checkpoint", self.double_checkpoint),
            when_busy=arguments.choice("when_busy", self.when_busy, ("skip", "wait")),
            max_failed_saves=limit,
            timeout=arguments.seconds("timeout", self.timeout, default=default.timeout),
            max_local_state=arguments.count(
                "max_local_state", self.max_local_state, of="bytes", default=default.max_local_state
            ),
        )

"""Which workers write files of their own."""

from __future__ import annotations

from typing import Literal

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.terminal import say
from keras_dist_callbacks.cluster.cluster import Cluster

Writers = Literal["chief", "all"]


def agree_on_writers(cluster: Cluster, callback: str, write_on: Writers, path: str, *, elsewhere: bool = False) -> bool:
    """Returns whether this worker writes; one that does not says so.

    Args:
        cluster: Who takes part.
        callback: Its name, for messages.
        write_on: `"chief"`, or `"all"`: each worker to a path of its own.
        path: Where this worker would write, without credentials.
        elsewhere: This worker writes to another place anyway.

    Raises:
        ConfigError: All are to write, but two of them to one path; or workers differ about who does.
    """
    if cluster.num_workers == 1 or cluster.is_evaluator:
        return cluster.is_chief
    cluster.require_same({f"write_on of {callback}": repr(write_on)}, f"{callback}, who writes")
    paths = cluster.gather(path, f"{callback}, where")
    if write_on == "all":
        shared = [worker for worker, other in enumerate(paths) if paths.count(other) > 1]
        if shared:
            cluster.sync_before_raise(f"{callback}, where")
            raise ConfigError(
                f"{callback}(write_on='all'): workers {', '.join(map(str, shared))} would all write to "
                f"{paths[shared[0]]}; give each worker its own path"
            )
        return True
    if not cluster.is_chief and not elsewhere:
        other = "" if path == paths[0] else f", to {path}"
        say(
            f"{cluster.name} does not write for {callback}: only the chief does, to {paths[0]}. With write_on='all' "
            f"this worker writes too{other or ', to a path of its own'}"
        )
    return cluster.is_chief

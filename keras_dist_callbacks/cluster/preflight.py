"""Makes sure over plain TCP that every worker is there before TensorFlow builds its cluster.

TensorFlow's own build holds the GIL while it waits, so that no time-out and no signal handler in Python can
act, and a lone worker ignores SIGTERM. Here a lone process ends in bounded time, names who is missing and
obeys SIGTERM. The chief listens on its own TensorFlow port, which TensorFlow binds right afterwards.

With a token (`KDC_CLUSTER_TOKEN`), the chief and each worker prove to each other that they have it, by a challenge
and HMAC-SHA256, without sending it. Each proof is bound to who gives it, to the worker's index, to the cluster's
addresses and to what both sides have made up for this connection. Without a token, whoever knows the addresses may say
"I am worker 1".
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Sequence

from keras_dist_callbacks.cluster.addresses import split_address
from keras_dist_callbacks.cluster.cluster_token import ClusterToken
from keras_dist_callbacks.cluster.greetings import Deadline
from keras_dist_callbacks.cluster.reception import Reception
from keras_dist_callbacks.cluster.reporting import Report
from keras_dist_callbacks.errors import ConfigError


def wait_for_everyone(addresses: Sequence[str], index: int, timeout: float, token: ClusterToken | None = None) -> None:
    """Returns when all workers of the cluster have said hello to the chief.

    Args:
        addresses: `host:port` of each training worker, the chief first.
        index: This process' place in `addresses`.
        timeout: Seconds for everything together, whatever others send or do not send.
        token: What the workers of this cluster have and strangers do not. Defaults to none.

    Raises:
        ClusterTimeoutError: Somebody is missing; the message names them, and who said to be them.
        ConfigError: An address is malformed, this process' port is occupied, or the workers' tokens differ.
    """
    deadline = Deadline.after(timeout)
    cluster = hashlib.sha256(",".join(addresses).encode()).hexdigest()
    with _listen(split_address(addresses[index])[1], addresses[index]) as own:
        if index == 0:
            Reception(own, addresses, cluster, token, deadline).wait()
        else:
            Report(own, addresses, cluster, index, token, deadline).deliver()


def _listen(port: int, address: str) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            ("", port),
            family=socket.AF_INET6 if dual else socket.AF_INET,
            dualstack_ipv6=dual,
            backlog=128,
        )
    except OSError as error:
        raise ConfigError(
            f"this worker cannot listen on its own port {port} ({address}): {error.strerror}; "
            "end the process that occupies it (an earlier run?) or give the worker another port in TF_CONFIG"
        ) from error

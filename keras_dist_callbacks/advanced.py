"""What few scripts need: the place in a cluster, and what is asserted or registered about code of your own.

Names are loaded when they are first used, as those of the package are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_dist_callbacks.base.lazy import exports

_HOME = {
    "Cluster": "keras_dist_callbacks.cluster.cluster",
    "enable_multi_worker_fit": "keras_dist_callbacks._compat.multi_worker",
    "register_callback_state": "keras_dist_callbacks.state.callback_state",
    "stateless_input": "keras_dist_callbacks.state.inputs.sources",
}

if TYPE_CHECKING:
    from keras_dist_callbacks._compat.multi_worker import enable_multi_worker_fit as enable_multi_worker_fit
    from keras_dist_callbacks.cluster.cluster import Cluster as Cluster
    from keras_dist_callbacks.state.callback_state import register_callback_state as register_callback_state
    from keras_dist_callbacks.state.inputs.sources import stateless_input as stateless_input
else:
    __getattr__, __dir__ = exports(globals(), _HOME)

__all__ = [*_HOME]

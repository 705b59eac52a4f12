"""Whether TensorFlow has begun to work in this process, asked without importing it."""

from __future__ import annotations

import sys


def tensorflow_has_context() -> bool:
    """Whether a TensorFlow context, with its threads, exists: such a process must not be forked."""
    module = sys.modules.get("tensorflow.python.eager.context")
    context = getattr(module, "_context", None)  # context.context() would make one
    return context is not None and bool(context._initialized)

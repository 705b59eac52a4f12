"""A running fit() or loop: what of it is captured, and how it is restored.

It may use Keras and TensorFlow, and their private names through `_compat` alone. When to save, and what is written, is
the engine's. `loading` and `model_export` read backups for programs that train nothing.
"""

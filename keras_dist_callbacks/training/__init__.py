"""A running fit() or loop: what of it is captured, and how it is restored.

It may use Keras and TensorFlow, and their private names through `_compat` alone. Nothing here knows stores or files.
"""

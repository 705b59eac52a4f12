"""A running fit() or loop: what of it is captured, and how it is put back where it was.

May use Keras and TensorFlow, privately through `_compat` alone. Nothing about stores or files.
"""

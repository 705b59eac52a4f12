"""Stores: local files and everything behind fsspec, with one policy for retries and one meaning of errors.

The only package that imports fsspec. It knows names and bytes, and nothing of backups, Keras or TensorFlow.
"""

"""The stores: local files, and everything behind fsspec, with one policy for retries and one meaning of errors.

The only place that imports fsspec. Knows names and bytes; nothing of backups, Keras or TensorFlow.
"""

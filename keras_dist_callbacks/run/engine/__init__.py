"""When and how a backup is written, and which one is chosen: the path between a snapshot and the store.

It knows the workers and the background thread, but neither Keras nor TensorFlow nor what fit() is.
"""

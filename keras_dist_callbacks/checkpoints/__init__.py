"""Model files that `ModelCheckpoint` publishes: the record in each of them, finding, verifying and deleting them.

Here belongs what knows the format of a checkpoint; nothing here imports TensorFlow or Keras.
"""

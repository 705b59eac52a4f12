"""Model files that `ModelCheckpoint` publishes: the record in each of them, finding, verifying and deleting them.

`restore.py` loads models; the other modules know the format and import neither TensorFlow nor Keras.
"""

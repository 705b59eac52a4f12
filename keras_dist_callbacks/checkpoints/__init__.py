"""Model files that `ModelCheckpoint` publishes: the record in each of them, finding, verifying and deleting them.

`restore.py` and `adopt_foreign.py` load models; the other modules know the format and import neither TensorFlow nor
Keras.
"""

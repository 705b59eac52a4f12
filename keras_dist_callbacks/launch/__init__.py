"""Starts, watches and restarts processes: workers that end with their owner, and spares that have imported ahead.

It knows commands, environments, signals and exit codes, and nothing of training. It imports neither TensorFlow nor
Keras.
"""

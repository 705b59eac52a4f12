"""Starts and watches processes: workers that end with their owner, and the fork server that starts them fast.

It knows commands, environments, signals and exit codes, and nothing of training. It imports neither TensorFlow nor
Keras.
"""

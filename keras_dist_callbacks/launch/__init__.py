"""Starting and watching processes: workers that cannot be left behind, and templates that fork them.

Knows commands, environments, signals and exit codes; nothing of training. The parts that watch import neither
TensorFlow nor Keras.
"""

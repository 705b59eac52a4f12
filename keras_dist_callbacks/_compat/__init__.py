"""The only place for private names of Keras and TensorFlow, each in a function that says what it is for.

Nothing here knows backups, stores or workers; where Keras differs from what is known, it raises `CompatError`.
"""

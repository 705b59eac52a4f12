"""What every package may use: errors, messages, arguments, state of the process, and what a launcher is told.

Nothing here knows backups, stores or Keras.
"""

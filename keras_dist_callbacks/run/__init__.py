"""One running fit() or loop: when it is saved, how it is resumed, and what ends it early.

The state itself is that of `state`; nothing here knows files or stores beyond the backup directory.
"""

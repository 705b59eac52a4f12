"""One running fit() or loop: when it is saved, how it is resumed, and what ends it early.

The state itself is that of `state`. What reads a backup without a run is here too: `load_backup` and its export.
"""

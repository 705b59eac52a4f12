"""The input pipeline of a training: its position, its own state, and what of it cannot be restored.

Nothing here knows about callbacks or about how a backup is written.
"""

"""The input pipeline of a training: its position, its own state, and what of it cannot be restored."""

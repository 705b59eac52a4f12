"""The parts of a training's state: what each saves, checks and restores.

A part knows its own piece and nothing of another part, of a store, or of a callback of ours.
"""

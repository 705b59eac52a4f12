"""The parts of a training's state: what each saves, checks and restores.

A part reads its own piece and no other one, and knows no store and no callback of ours. What one part needs of
another (which variables are saved already, whose `set_state` comes first) `FitParts.of` hands to it.
"""

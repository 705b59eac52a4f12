"""Facts of the script: what training depends on and no variable holds.

`table.py` lists them, with what a change of each means; `of_input`, `of_model` and `content` find those that need more
than a line; `part.py` saves them and compares them with those of a backup.
"""

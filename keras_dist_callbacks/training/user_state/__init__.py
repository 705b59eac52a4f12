"""State of the user's Python code: what a walk over its objects finds, saves, restores, and compares between two runs.

libraries   which packages are not user code, and which objects only write output
reads       what a function's bytecode refers to
nodes       what the walk records of one object: a comparable token, and where it is bound
walk        from the callbacks, the model and their functions to every object that they reach
changes     what differs between the start of a run and now, as records that a backup holds; putting them back
edits       what differs between the starts of two runs
"""

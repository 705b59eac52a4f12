"""State of the user's Python code: what a walk over its objects finds, saves, restores, and compares between two runs.

- `libraries`: which packages are not user code, and which objects only write output
- `reads`: what a function's bytecode refers to
- `nodes`: what is noted of one object: a token that can be compared, where the object is bound, and its path
- `walker`: one walk: what is still to be visited, and what was found
- `values`, `functions`, `walk`: how it looks at values, at code, at instances
- `changes`: what differs between the start of a run and now, as records that a backup holds; `restoring` puts it back
- `edits`: what differs between the starts of two runs
- `findings`: what a resume does not repeat of that
- `traced_reads`: what functions that TensorFlow has traced may have read
- `input_state`, `state`: all of it in one running fit()
"""

"""State of the user's Python code: found at places that it names, saved where training has changed it, put back.

- `libraries`: which packages are not user code, and which objects only write output
- `reads`: what a function's bytecode refers to
- `places`: where a value is bound, and the path under which a backup knows it
- `look`: one look at all that callbacks, model and functions reach; `kinds` and `code` say how each kind of object is
  looked at
- `changes`: what differs from the script's start, as records of a backup, and how it is put back
- `traces`: what functions that TensorFlow has traced may have read
- `edits`: what differs between the starts of two runs
- `findings`: what a resume does not repeat of that
- `input_objects`, `part`: all of it in one running fit()
"""

"""SidecarEvaluator: a process next to the training that evaluates each new checkpoint.

It reads model files and backups and writes results; it never takes part in a training.
"""

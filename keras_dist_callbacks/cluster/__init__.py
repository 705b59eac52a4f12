"""The workers: who this process is among them, what they say to each other, and the strategy that joins them.

The only place that reads TF_CONFIG. Knows nothing of backups and callbacks.
"""

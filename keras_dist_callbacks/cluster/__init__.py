"""The workers: who this process is among them, what they send to each other, and the strategy that joins them.

The only package that reads TF_CONFIG. It knows nothing of backups and callbacks.
"""

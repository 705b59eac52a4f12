"""What users pass to `fit()`: callbacks that translate Keras' events into calls of the packages below, one a module.

Capture, files and decisions belong to those packages.
"""

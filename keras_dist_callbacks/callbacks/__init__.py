"""What users put into `fit()`: callbacks that translate Keras' events into calls of the rooms below, one a file.

No capture, no files and no decisions here.
"""

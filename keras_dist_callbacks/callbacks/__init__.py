"""Callbacks: they only translate Keras events into calls of the layers below."""

"""The backup format: snapshots, their codec, manifests, blobs, commits, and the verdict that follows from them.

Nothing here imports TensorFlow or Keras, asks who else is in the cluster, or decides when to save.
"""

"""What lies in the store: snapshots, their codec and manifest, blobs, commits, model files and their sidecars.

Nothing here imports TensorFlow or Keras, asks who else is in the cluster, or decides when to save.
"""

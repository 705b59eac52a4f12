"""What a process of `kdc rehearse` does differently: the plan, the scratch directory, and what is recorded.

A plan counts only while the command that made it holds its lock. Nothing here imports TensorFlow or Keras.
"""

"""What backups cost, measured beside Keras', Orbax' and TensorFlow's own: `python -m benchmarks`."""

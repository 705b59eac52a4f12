"""What backups cost, measured next to Keras', Orbax' and TensorFlow's own: `python -m benchmarks`."""

"""The only home of private Keras and TensorFlow names."""

"""`python -m keras_dist_callbacks.cli`, for where the console script is not on the path."""

from keras_dist_callbacks.cli import main

if __name__ == "__main__":
    main()

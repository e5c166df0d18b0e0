"""Learn a similarity metric from labels, without sampling triplets, and search with it."""

__version__ = "0.1.0"

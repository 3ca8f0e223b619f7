"""Parses and writes tf.train.Example messages in columns, without TensorFlow."""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)

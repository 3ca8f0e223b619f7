"""tf.train.Example messages: parsed and written in columns, without TensorFlow."""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)

"""streamrec: TFRecord shards from remote storage, streamed, verified, without TensorFlow.

    >>> import streamrec
    >>> dataset = streamrec.TFRecordDataset("gs://bucket/train-*.tfrecord", num_parallel_reads=16)
    >>> batches = dataset.batch(1024)

Then `for frames in batches` in a training loop, or `async for` in a service.

`import streamrec` is cheap: a public name is imported when it is first asked for. So are the
modules `errors`, `example`, `pipeline`, `shards`, `storage` and `tfrecord`, which have the less
common names, such as `streamrec.shards.ShardInfo`.
`__init__.pyi` lists them.
"""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
__version__ = "0.1.0"

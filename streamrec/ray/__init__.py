"""TFRecord shards as a Datasource and a Datasink of Ray Data.

They use its public API, and need no TensorFlow.

    dataset = streamrec.ray.read_tfrecords("s3://bucket/train-*.tfrecord", features=features)
    streamrec.ray.write_tfrecords(dataset, "s3://bucket/new/")

`reading.py` is the Datasource, `writing.py` the Datasink; columns are Arrow blocks.

Needs the extra `ray`.
"""

from streamrec.ray.reading import TFRecordDatasource, read_tfrecords
from streamrec.ray.writing import TFRecordDatasink, write_tfrecords

__all__ = ["TFRecordDatasink", "TFRecordDatasource", "read_tfrecords", "write_tfrecords"]


def __dir__() -> list[str]:
    """Only what is public: no modules of the package that were imported."""
    return __all__

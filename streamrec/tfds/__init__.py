"""Folders of TensorFlow Datasets (TFDS) and RLDS episodes, read and written without TensorFlow.

    mnist = await streamrec.tfds.open("s3://bucket/data/mnist/3.0.1")  # or open_sync
    for example in mnist.read("train[:90%]"):
        example["image"], example["label"]

`opening.py` finds a folder and reads its two JSON files (`description.py`, `features_json.py`);
`features.py` is the tree of features; `slices.py` turns split expressions into records of shards;
`leaf_column.py` makes a column of one feature, and `decoder.py` examples of records; `episodes.py`
makes steps of RLDS episodes, and `statistics.py` statistics of actions.

`writing.py` writes a folder: `given_features.py` and `inference.py` make its tree of features,
`example_encoder.py` and `leaf_values.py` records of examples, `spool.py` keeps them until all are
encoded, `sharding.py` divides them, and `json_writing.py` describes them.

Images need the extra `images`.
"""

from streamrec.tfds.decoder import Decoder
from streamrec.tfds.description import SplitInfo
from streamrec.tfds.features import FeaturesDict, LeafFeature, SequenceFeature
from streamrec.tfds.folder import Folder
from streamrec.tfds.leaf_column import skip
from streamrec.tfds.opening import open, open_sync
from streamrec.tfds.statistics import FeatureStatistics, statistics, statistics_sync
from streamrec.tfds.writing import write, write_sync

__all__ = [
    "Decoder",
    "FeatureStatistics",
    "FeaturesDict",
    "Folder",
    "LeafFeature",
    "SequenceFeature",
    "SplitInfo",
    "open",
    "open_sync",
    "skip",
    "statistics",
    "statistics_sync",
    "write",
    "write_sync",
]


def __dir__() -> list[str]:
    """Only what is public: no modules of the package that were imported."""
    return __all__

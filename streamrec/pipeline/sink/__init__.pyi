from streamrec.pipeline.sink.records import Encoder
from streamrec.pipeline.sink.target import target_of
from streamrec.pipeline.sink.write import WriteProgress, write_shards

__all__ = ["Encoder", "WriteProgress", "target_of", "write_shards"]

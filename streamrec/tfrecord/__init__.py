"""TFRecord framing and compression, sans-I/O: knows bytes, not files."""

from streamrec.tfrecord.compression import Deflater, Inflater, decode_compressed
from streamrec.tfrecord.encoder import RecordBatch, as_record, encode_record, encode_records
from streamrec.tfrecord.framer import Framer
from streamrec.tfrecord.frames import FOOTER_BYTES, HEADER_BYTES, Frames, as_spans
from streamrec.tfrecord.joining import Joining
from streamrec.tfrecord.lengths import (
    BLOCK,
    BLOCK_RECORDS,
    MOST_BITS,
    LengthPacker,
    PackedLengths,
    packed_sizes,
    unpack,
)
from streamrec.tfrecord.long_records import LONG_BYTES, LongRecord
from streamrec.tfrecord.loss import Loss, OnError, check_on_error
from streamrec.tfrecord.options import CompressionType, TFRecordOptions, check_compression_type
from streamrec.tfrecord.recovery import MAX_RECORD_BYTES
from streamrec.tfrecord.scattered import BUFFER_BITS, SCATTERED_BYTES, Scattered, are_long
from streamrec.tfrecord.seek import SETTLE_BYTES, Start, find_start, is_record, spanning
from streamrec.tfrecord.sniffing import DETECT_BYTES, detect_compression, is_record_header

__all__ = [
    "BLOCK",
    "BLOCK_RECORDS",
    "BUFFER_BITS",
    "DETECT_BYTES",
    "FOOTER_BYTES",
    "HEADER_BYTES",
    "LONG_BYTES",
    "MAX_RECORD_BYTES",
    "MOST_BITS",
    "SCATTERED_BYTES",
    "SETTLE_BYTES",
    "CompressionType",
    "Deflater",
    "Framer",
    "Frames",
    "Inflater",
    "Joining",
    "LengthPacker",
    "LongRecord",
    "Loss",
    "OnError",
    "PackedLengths",
    "RecordBatch",
    "Scattered",
    "Start",
    "TFRecordOptions",
    "are_long",
    "as_record",
    "as_spans",
    "check_compression_type",
    "check_on_error",
    "decode_compressed",
    "detect_compression",
    "encode_record",
    "encode_records",
    "find_start",
    "is_record",
    "is_record_header",
    "packed_sizes",
    "spanning",
    "unpack",
]

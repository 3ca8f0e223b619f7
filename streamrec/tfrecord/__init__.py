"""TFRecord framing and compression, sans-I/O: knows bytes, not files."""

from streamrec.tfrecord.compression import (
    DETECT_BYTES,
    CompressionType,
    Deflater,
    Inflater,
    TFRecordOptions,
    check_compression_type,
    decode_compressed,
    detect_compression,
    is_record_header,
)
from streamrec.tfrecord.damage import MAX_RECORD_BYTES, Loss, OnError, check_on_error
from streamrec.tfrecord.encoder import RecordBatch, as_record, encode_record, encode_records
from streamrec.tfrecord.framer import Framer
from streamrec.tfrecord.frames import (
    BUFFER_BITS,
    FOOTER_BYTES,
    HEADER_BYTES,
    SCATTERED_BYTES,
    Frames,
    Joining,
    Scattered,
    are_long,
    as_spans,
)
from streamrec.tfrecord.lengths import BLOCK, BLOCK_RECORDS, MAX_BITS, LengthPacker, PackedLengths, packed_sizes, unpack

__all__ = [
    "BLOCK",
    "BLOCK_RECORDS",
    "BUFFER_BITS",
    "DETECT_BYTES",
    "FOOTER_BYTES",
    "HEADER_BYTES",
    "MAX_BITS",
    "MAX_RECORD_BYTES",
    "SCATTERED_BYTES",
    "CompressionType",
    "Deflater",
    "Framer",
    "Frames",
    "Inflater",
    "Joining",
    "LengthPacker",
    "Loss",
    "OnError",
    "PackedLengths",
    "RecordBatch",
    "Scattered",
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
    "is_record_header",
    "packed_sizes",
    "unpack",
]

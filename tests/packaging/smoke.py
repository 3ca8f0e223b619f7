"""Whether an installed wheel works at all, without a server: cibuildwheel runs this on each
system.
"""

import tempfile
from pathlib import Path

import streamrec
from streamrec import kernels

assert kernels.crc32c(b"abc") == 0x364B3FB7
with tempfile.TemporaryDirectory() as folder:
    records = [b"%d" % number * (number % 100) for number in range(10_000)]
    path = Path(folder) / "records.tfrecord"
    path.write_bytes(streamrec.encode_records(records))
    assert list(streamrec.TFRecordDataset(str(path))) == records
    assert len(list(streamrec.TFRecordDataset(str(path)).shuffle(1000, seed=1))) == len(records)
    assert kernels.crc32c_implementations()
print("all is well:", *kernels.crc32c_implementations())

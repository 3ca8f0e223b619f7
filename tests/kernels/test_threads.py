"""The kernels run without the GIL: many threads at once get what one gets."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from streamrec import kernels
from tests.kernels.streams import NO_LIMIT, cut, frame, spans_of

RECORDS = [np.random.default_rng(size).bytes(size) for size in (0, 3, 84, 680, 5000)]


def test_threads_over_one_buffer_and_over_many() -> None:
    """Each thread scans, gathers and encodes its own stream and the common one."""
    common = b"".join(map(frame, RECORDS)) * 20

    def work(i: int) -> bool:
        payloads = RECORDS[i % 5 :] * 40
        data = b"".join(map(frame, payloads))
        spans, *_ = kernels.scan_frames(data, 0, True, NO_LIMIT)
        common_spans, position, *_ = kernels.scan_frames(common, 0, True, NO_LIMIT)
        buffer, new = kernels.gather([data], None, spans_of(spans))
        return (
            cut(data, spans) == payloads
            and position == len(common)
            and cut(common, common_spans) == RECORDS * 20
            and kernels.encode_frames(buffer, spans_of(new)) == data
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(12)))

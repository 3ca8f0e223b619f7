"""What was lost in one shard: how much is kept, logged and told, and when the rest is lost."""

import logging

import pytest

from streamrec.shards.loss_log import KEPT, LOGGED, LossLog
from streamrec.shards.options import ReadOptions
from streamrec.storage import Tally
from streamrec.tfrecord import Loss


def made_losses(count: int) -> list[Loss]:
    return [Loss("s3://b/shard", 16 * number, 16, "damaged", number) for number in range(count)]


def test_every_loss_is_counted_and_told_and_a_thousand_are_kept() -> None:
    told: list[Loss] = []
    tally = Tally()
    log = LossLog(ReadOptions(on_error="resync", on_loss=told.append), tally)
    log.add(made_losses(KEPT + 5))
    assert (log.count, len(log.losses), len(told)) == (KEPT + 5, KEPT, KEPT + 5)
    counts = tally.counts()
    assert (counts.losses, counts.lost_bytes) == (KEPT + 5, 16 * (KEPT + 5))


def test_log_has_ten_losses_and_one_line_that_there_are_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "streamrec"):
        LossLog(ReadOptions(on_error="resync"), Tally()).add(made_losses(LOGGED + 3))
    assert len(caplog.messages) == LOGGED + 1
    assert "more than 10 losses" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("on_error", "compressed", "plain"),
    [
        ("raise", False, False),
        ("skip_record", False, False),
        ("resync", True, False),
        ("skip_shard", True, True),
    ],
)
def test_policy_says_whether_the_rest_is_lost(on_error: str, compressed: bool, plain: bool) -> None:
    log = LossLog(ReadOptions(on_error=on_error), Tally())
    assert log.covers_rest(is_compressed=True) is compressed
    assert log.covers_rest(is_compressed=False) is plain


def test_rest_is_an_error_once_too_much_was_lost() -> None:
    log = LossLog(ReadOptions(on_error="skip_shard", max_skipped=1), Tally())
    assert log.covers_rest(is_compressed=False)
    log.add(made_losses(1))
    assert not log.covers_rest(is_compressed=False)

"""What is required of the log is what a crash could undo, partition by partition."""

from __future__ import annotations

from shardnode.shard.watermarks import Watermark, Watermarks, truncation_point


def test_required_follows_flushes_and_what_they_made_durable() -> None:
    applied = {1: 4, 2: 1}
    marks = Watermarks(applied)
    assert marks.of(1) == Watermark(1, 4, 4, 0)
    marks.applying(1, 10)
    applied[1] = 5
    marks.applying(1, 11)
    applied[1] = 6
    assert marks.of(1) == Watermark(1, 6, 4, 10)
    assert marks.of(2) == Watermark(2, 1, 1, 0)
    marks.flushing(11)
    marks.applying(2, 12)
    applied[2] = 2
    assert truncation_point(marks.all({}), 12) == 9
    marks.durable(10)  # the last flush may still be undone
    assert marks.of(1).durable == 4
    marks.durable(11)
    assert marks.all({}) == [Watermark(1, 6, 6, 0), Watermark(2, 2, 1, 12)]
    assert truncation_point(marks.all({}), 12) == 11


def test_what_waits_for_acknowledgements_is_required_although_it_is_durable() -> None:
    marks = Watermarks({1: 4})
    assert marks.all({1: 3, 9: 7}) == [Watermark(1, 4, 4, 3), Watermark(9, 0, 0, 7)]
    assert truncation_point(marks.all({1: 3}), 50) == 2


def test_without_anything_required_the_rest_decides() -> None:
    assert truncation_point(Watermarks({1: 4}).all({}), 50) == 50

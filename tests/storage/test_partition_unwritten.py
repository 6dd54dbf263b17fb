"""Batches of a partition that are in memory alone: readers find them, and a full disk waits."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from shardnode.storage.errors import NoSpace
from shardnode.storage.files import Files, RealFiles
from tests.storage.kit import disk
from tests.storage.partition_kit import (
    EVERYTHING,
    batch,
    batches,
    contents,
    filled,
    image,
    open_log,
    paths,
    reference,
)


@pytest.fixture(params=["real", "simulated"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return RealFiles(tmp_path / "root") if request.param == "real" else disk()


def test_a_full_disk_delays_the_files_wherever_it_strikes_and_readers_notice_nothing() -> None:
    """At each operation of a sync that rolls several times."""
    given = batches(40)
    refused = 0
    for start in (0, 5, 7):
        for operation in range(20):
            simulated = disk(operation)
            log = filled(simulated, given[:start]) if start else open_log(simulated)
            durable = log.durable
            log.append(given[start:])
            simulated.fail_after(operation, "enospc")
            with suppress(NoSpace):
                log.sync()
                simulated.calm()
            if log.durable == durable:
                refused += 1
                assert contents(log) == given
                simulated.calm()
            more = batch(1000, log.end_offset)
            log.append([more])
            assert contents(log) == [*given, more]
            mark = log.sync()
            assert (contents(log), mark) == ([*given, more], log.mark)
            simulated.crash()
            assert contents(open_log(simulated, mark)) == [*given, more]
            assert image(simulated) == reference([*given, more])
    assert refused > 20


def test_what_is_not_written_yet_is_read_and_found_like_the_rest(files: Files) -> None:
    given = batches(40)
    log = filled(files, given[:15])
    log.append(given[15:])
    holder = {offset: each for each in given for offset in range(each.offset, each.end_offset)}
    again = open_log(files, log.durable)
    again.append(given[15:])
    for opened in (log, again):
        assert len(opened.segments) > len(paths(files))
        for offset in sorted(holder, key=lambda each: (each * 7) % len(holder)):
            assert opened.read(offset, bytes_max=1) == [holder[offset]]
        for stamp in range(-1, given[-1].stamp_ms + 3):
            later = [each.offset for each in given if each.stamp_ms >= stamp]
            assert opened.find(stamp) == (later[0] if later else opened.end_offset)
        assert contents(opened) == given
        first = given[20]
        assert opened.read(first.offset, bytes_max=EVERYTHING, batches_max=3) == given[20:23]
        found = opened.read(first.offset, bytes_max=EVERYTHING, messages_max=first.count + 1)
        assert found == given[20:22]
        opened.trim(first.offset + 1)
        assert contents(opened)[0] == (first if first.count > 1 else given[21])

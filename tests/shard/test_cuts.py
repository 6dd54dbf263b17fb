"""Cuts of a shard: what they name stays as it is, as long as somebody reads it and no longer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardnode.shard.cuts import CUTS_MAX, LOOK_EVERY_MS, OFFSET_MAX, WAIT_MS, Cuts
from shardnode.shard.replica import ALL
from shardnode.storage.manifest import SnapshotMeta
from shardnode.storage.options import LogOptions
from shardnode.storage.records import ORIGIN, Anchor, Record
from shardnode.storage.stretch import prove
from shardnode.wire.codec import Answer
from shardnode.wire.cuts import (
    CutClose,
    CutKeep,
    CutKept,
    CutLog,
    CutOpen,
    CutOpened,
    CutPiece,
    CutRead,
)
from shardnode.wire.errors import (
    Compacted,
    Conflict,
    Corrupt,
    InvalidRequest,
    NotFound,
    Overloaded,
    WrongShard,
)
from shardnode.wire.frames import build_request
from shardnode.wire.kinds import Consistency, Kind
from shardnode.wire.replies import Written, decode_reply
from shardnode.wire.requests import Put
from tests.shard.desk import WALL_MS, Counter

LARGE = 1 << 40


def put(counter: Counter, number: int, size: int = 20) -> int:
    written = counter.ask(Kind.PUT, Put(b"k%d" % number, b"v" * size))
    assert isinstance(written, Written)
    return written.version


def opened(counter: Counter, lease_ms: int = 30_000, **ask: object) -> CutOpened:
    found = counter.ask(Kind.CUT_OPEN, CutOpen(lease_ms, **ask))  # type: ignore[arg-type]
    assert isinstance(found, CutOpened)
    return found


def with_snapshot(counter: Counter) -> CutOpened:
    """A cut whose snapshot has everything."""
    put(counter, 0)
    counter.replica.flush()
    put(counter, 0)
    cut = opened(counter, log_bytes_max=0)
    assert cut.snapshot_index == cut.index
    return cut


def piece(answer: Answer) -> bytes:
    assert isinstance(answer, CutPiece)
    return answer.data


def file_of(counter: Counter, cut: CutOpened, name: str, step: int = 1_000) -> bytes:
    data = b""
    while found := piece(counter.ask(Kind.CUT_READ, CutRead(cut.cut, name, len(data), step))):
        data += found
    return data


def log_of(counter: Counter, cut: CutOpened, step: int = 700) -> list[Record]:
    data, first = b"", cut.log_after + 1
    while found := piece(counter.ask(Kind.CUT_LOG, CutLog(cut.cut, first, len(data), step))):
        data += found
    position = Anchor(cut.log_after, cut.log_after_term, cut.log_after_chain)
    proven = list(prove(data, position))
    if proven:
        assert proven[-1].position[::2] == (cut.index, cut.chain)
        assert proven[-1].end == len(data)
    return [each.record for each in proven]


def cuts_of(counter: Counter) -> Cuts:
    return counter.service.cuts


def test_a_cut_of_a_small_shard_is_its_log() -> None:
    counter = Counter()
    version = put(counter, 1)
    cut = opened(counter, log_bytes_max=LARGE)
    assert (cut.node, cut.snapshot, cut.log_after) == (1, 0, ORIGIN.index)
    assert cut.index >= version
    put(counter, 2)
    records = log_of(counter, cut)
    assert [record.index for record in records] == [*range(1, cut.index + 1)]
    assert sum(b"k1" in record.payload for record in records) == 1
    assert not any(b"k2" in record.payload for record in records), "it is a cut of then"


def test_a_snapshot_is_taken_when_too_much_log_would_follow() -> None:
    counter = Counter()
    for number in range(50):
        put(counter, number, 500)
    counter.replica.flush()
    put(counter, 50, 2_000)
    cut = opened(counter, log_bytes_max=1_000)
    assert cut.snapshot_index == cut.index, "without a builder it is there at once"
    meta = SnapshotMeta.decode(file_of(counter, cut, "manifest"))
    assert (meta.id, meta.index, meta.size) == (cut.snapshot, cut.index, cut.snapshot_bytes)
    assert len(meta.encode()) == cut.manifest_bytes
    for described in meta.files:
        assert len(file_of(counter, cut, described.name)) == described.size
    assert log_of(counter, cut) == []


def test_what_is_read_again_goes_on_behind_what_was_read() -> None:
    counter = Counter()
    put(counter, 1)
    first = opened(counter, log_bytes_max=LARGE)
    counter.replica.flush()
    last = put(counter, 2)
    rest = opened(counter, after=first.index, after_chain=first.chain, snapshot=False)
    assert (rest.log_after, rest.log_after_chain) == (first.index, first.chain)
    assert [record.index for record in log_of(counter, rest)] == [last]
    both = opened(counter, after=first.index, after_chain=first.chain, log_bytes_max=0)
    assert both.snapshot_index > both.log_after == first.index, "a snapshot, and no gap before it"


def test_another_history_is_refused() -> None:
    counter = Counter()
    put(counter, 1)
    cut = opened(counter, log_bytes_max=LARGE)
    with pytest.raises(Conflict, match="another one"):
        opened(counter, after=cut.index, after_chain=cut.chain ^ 1)
    with pytest.raises(Conflict, match="another one"):
        opened(counter, after=cut.index + 5, after_chain=cut.chain)


def test_every_entry_of_a_time_is_in_the_cut_that_covers_it() -> None:
    counter = Counter()
    put(counter, 1)
    cut = opened(counter, log_bytes_max=LARGE)
    assert cut.through_ms == counter.service._stamp() - 1 >= WALL_MS
    records = log_of(counter, cut)
    stamps = [int.from_bytes(each.payload[:8], "big") for each in records if each.payload]
    assert max(stamps) <= cut.through_ms
    stale = opened(counter, log_bytes_max=LARGE, consistency=Consistency.STALE)
    assert stale.through_ms == max(stamps) - 1


def test_a_lease_that_nobody_renews_ends() -> None:
    counter = Counter()
    put(counter, 1)
    cut = opened(counter, log_bytes_max=LARGE)
    for _ in range(5):
        counter.drain(later_ms=20_000)
        kept = counter.ask(Kind.CUT_KEEP, CutKeep(cut.cut, 30_000))
        assert kept == CutKept(30_000)
    counter.drain(later_ms=30_001)
    assert len(cuts_of(counter)) == 0
    assert counter.replica.kept_index == ALL
    with pytest.raises(NotFound, match="open another"):
        counter.ask(Kind.CUT_KEEP, CutKeep(cut.cut, 30_000))


def test_closing_lets_go_and_may_be_repeated() -> None:
    counter = Counter()
    cut = with_snapshot(counter)
    for _ in range(2):
        counter.ask(Kind.CUT_CLOSE, CutClose(cut.cut))
    with pytest.raises(NotFound):
        file_of(counter, cut, "manifest")
    assert len(cuts_of(counter)) == 0


def cut_log_off(counter: Counter) -> None:
    """As a flush does, with a log that nobody else needs."""
    counter.replica.settings = replace(counter.replica.settings, keep_entries=0)
    counter.replica.flush()
    put(counter, 0)
    counter.replica.flush()


SMALL = LogOptions(segment_bytes=1 << 20, max_record_bytes=1 << 19, max_batch_bytes=1 << 19)


def rolled(counter: Counter, size: int) -> None:
    """So much that the log begins another segment."""
    for number in range(20):
        put(counter, number, size)


def test_the_log_stays_while_it_is_read() -> None:
    counter = Counter(log=SMALL)
    put(counter, 1)
    cut = opened(counter, log_bytes_max=LARGE)
    rolled(counter, 100_000)
    cut_log_off(counter)
    assert [record.index for record in log_of(counter, cut)] == [*range(1, cut.index + 1)]
    assert counter.replica.log.first_index == 1
    counter.ask(Kind.CUT_KEEP, CutKeep(cut.cut, 30_000, log_from=cut.index + 1))
    with pytest.raises(Compacted, match="open another"):
        log_of(counter, cut)
    cut_log_off(counter)
    assert counter.replica.log.first_index == 1, "from the cut on, it is there for the next one"
    counter.ask(Kind.CUT_CLOSE, CutClose(cut.cut))
    cut_log_off(counter)
    assert counter.replica.log.first_index > cut.index
    with pytest.raises(Compacted):
        opened(counter, after=cut.index, after_chain=cut.chain, snapshot=False)
    gap = opened(counter, after=cut.index, after_chain=cut.chain, log_bytes_max=0)
    assert gap.log_after == gap.snapshot_index > cut.index, "a snapshot bridges what is gone"


def test_a_log_that_outgrows_its_bound_is_cut_whoever_reads() -> None:
    counter = Counter()
    counter.replica.settings = replace(counter.replica.settings, keep_bytes_max=0)
    put(counter, 1)
    cut = opened(counter, log_bytes_max=LARGE)
    rolled(counter, 4 << 20)
    assert cuts_of(counter)._counters["cuts_revoked"] == 1
    cut_log_off(counter)
    assert counter.replica.log.first_index > cut.index
    with pytest.raises(Compacted, match="outgrown"):
        log_of(counter, cut)
    assert counter.ask(Kind.CUT_KEEP, CutKeep(cut.cut, 30_000)) == CutKept(30_000)


def test_a_snapshot_stays_while_it_is_read() -> None:
    counter = Counter()
    put(counter, 1)
    cut = with_snapshot(counter)
    before = file_of(counter, cut, "keys")
    for number in range(3):
        put(counter, number)
        counter.replica.copies.take_snapshot()
    assert file_of(counter, cut, "keys") == before
    assert len(counter.replica.snapshots.list()) == 3
    counter.ask(Kind.CUT_CLOSE, CutClose(cut.cut))
    assert len(counter.replica.snapshots.list()) == 2


def test_a_reader_that_lost_its_cut_finds_the_same_snapshot_again() -> None:
    counter = Counter()
    first = with_snapshot(counter)
    before = file_of(counter, first, "keys")
    counter.drain(later_ms=30_001)
    put(counter, 7)
    counter.replica.copies.take_snapshot()
    again = opened(counter, snapshot_id=first.snapshot)
    assert again.cut != first.cut
    assert (again.snapshot, again.snapshot_index) == (first.snapshot, first.snapshot_index)
    assert file_of(counter, again, "keys") == before
    assert counter.replica.kept_index == ALL, "it needs no log"
    for _ in range(2 * CUTS_MAX):
        assert opened(counter, snapshot_id=first.snapshot).cut == again.cut, "all share one"
    counter.drain(later_ms=20_000)
    opened(counter, snapshot_id=first.snapshot, lease_ms=1_000)
    counter.drain(later_ms=9_000)
    assert opened(counter, snapshot_id=first.snapshot).cut == again.cut, "a short lease ends none"
    for number in range(3):
        put(counter, number)
        counter.replica.copies.take_snapshot()
    assert file_of(counter, again, "keys") == before
    counter.ask(Kind.CUT_CLOSE, CutClose(again.cut))
    with pytest.raises(NotFound, match="not on node 1 any more"):
        opened(counter, snapshot_id=first.snapshot)


class SlowBuilder:
    """Never ready."""

    busy = False

    def begin(self, _temporary: str) -> None:
        self.busy = True

    def poll(self) -> None:
        return None

    def close(self) -> None:
        return None


def test_who_waits_for_a_snapshot_keeps_the_log_behind_it() -> None:
    counter = Counter()
    replica = counter.replica
    builder = SlowBuilder()
    replica.copies._builder = builder
    put(counter, 1)
    replica.flush()
    put(counter, 2, 2_000)
    wait = opened(counter, log_bytes_max=100)
    applied = replica.machine.applied_index
    assert (wait.cut, wait.index, wait.snapshot_min) == (0, applied, applied)
    assert (replica.flush_wanted, builder.busy) == (True, False), "it is to have all of now"
    assert replica.kept_index == wait.snapshot_min
    replica.flush()
    assert not replica.flush_wanted
    again = opened(counter, log_bytes_max=100, snapshot_min=wait.snapshot_min)
    assert (again.cut, again.snapshot_min) == (0, wait.snapshot_min), "it is not moved on"
    assert builder.busy
    assert replica.kept_index == wait.snapshot_min
    counter.drain(later_ms=WAIT_MS + 1)
    assert replica.kept_index == ALL, "who does not ask again is not waited for"
    replica.copies._builder = None
    replica.copies.take_snapshot()
    put(counter, 3, 2_000)
    replica.flush()
    cut = opened(counter, log_bytes_max=100, snapshot_min=wait.snapshot_min)
    assert cut.cut
    assert cut.index > cut.snapshot_index >= wait.snapshot_min, "however much log follows it"


def test_a_damaged_snapshot_is_told_and_replaced() -> None:
    counter = Counter()
    put(counter, 1)
    cut = with_snapshot(counter)
    store = counter.replica.snapshots
    path = store.path_of(store.list()[0])
    file = store._files.open(f"{path}/keys")
    file.pwritev([b"X"], 5)
    file.datasync()
    assert b"X" in file_of(counter, cut, "keys"), "it is not checked on the way"
    put(counter, 2)
    counter.ask(Kind.CUT_CLOSE, CutClose(cut.cut, doubt=True))
    assert [damaged.path for damaged in store.damaged] == [path]
    first, second, third = (opened(counter, 600_000, log_bytes_max=LARGE) for _ in range(3))
    assert first.snapshot_index > cut.snapshot_index
    sound = file_of(counter, third, "keys")
    file = store._files.open(f"{store.path_of(store.list()[0])}/keys")
    file.pwritev([b"X"], 5)
    counter.ask(Kind.CUT_CLOSE, CutClose(first.cut, doubt=True))
    assert len(store.damaged) == 1, "not everybody who doubts is worth a look"
    counter.drain(later_ms=LOOK_EVERY_MS)
    counter.ask(Kind.CUT_CLOSE, CutClose(second.cut, doubt=True))
    assert len(store.damaged) == 2
    assert file_of(counter, third, "keys") == sound, "the same snapshot was made again"
    store.drop_below(LARGE)
    store.verify(store.list()[0])
    store._published.clear()
    with pytest.raises(Corrupt, match="open another cut"):
        file_of(counter, third, "keys")


def test_what_makes_no_sense_is_refused() -> None:
    counter = Counter()
    put(counter, 1)
    cut = opened(counter, log_bytes_max=LARGE)
    with pytest.raises(InvalidRequest, match="log alone"):
        file_of(counter, cut, "keys")
    with pytest.raises(InvalidRequest, match="later record"):
        counter.ask(Kind.CUT_LOG, CutLog(cut.cut, 1, OFFSET_MAX + 1, 10))
    assert piece(counter.ask(Kind.CUT_LOG, CutLog(cut.cut, cut.index + 1, 0, 10))) == b""
    second = with_snapshot(counter)
    with pytest.raises(InvalidRequest, match="of the manifest"):
        file_of(counter, second, "../../node.json")
    far = CutRead(second.cut, "keys", 2**64 - 1, 10)
    assert piece(counter.ask(Kind.CUT_READ, far)) == b""
    with pytest.raises(WrongShard):
        counter.ask(Kind.CUT_OPEN, CutOpen(30_000), prefix=1)
    (legacy,) = counter.drain(build_request(Kind.CUT_OPEN, CutOpen(30_000).encode(), prefix=None))
    assert isinstance(decode_reply(legacy), CutOpened), "one shard is everything"


def test_there_are_only_so_many() -> None:
    counter = Counter()
    put(counter, 1)
    for _ in range(CUTS_MAX):
        opened(counter, log_bytes_max=LARGE)
    with pytest.raises(Overloaded):
        opened(counter, log_bytes_max=LARGE)
    counter.drain(later_ms=30_001)
    assert opened(counter, log_bytes_max=LARGE).cut

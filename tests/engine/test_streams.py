"""Stream partitions: every entry is in its partition's log once, whatever crashed in between."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardnode.shard.effects import Effects
from shardnode.shard.entries import PARTITIONS_SET, STREAM_TRIM, encode_entry, split_reply
from shardnode.shard.streams import Streams
from shardnode.sim.disk import SimFiles
from shardnode.storage.engine import MemoryEngine
from shardnode.storage.errors import NoSpace, SnapshotCorrupt
from shardnode.wire.appends import pack_append_many
from shardnode.wire.errors import Compacted, Conflict, Corrupt, InvalidRequest, NotFound
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import CONTROL_PARTITION
from shardnode.wire.replies import REPLIES, decode_error
from shardnode.wire.requests import SessionOpen
from shardnode.wire.streams import Append, Appended, MessageBatch
from tests.engine.kit import ALICE, SMALL, Log, parts_of, redo, restore

ONE, TWO = 11, 12


class Member:
    """A replica's effects on disks that can crash."""

    def __init__(self, seed: int = 1) -> None:
        self.files = SimFiles(random.Random(seed))
        self.files.mkdir("shard-0")
        self.engine = MemoryEngine(SMALL)
        self.effects = self._open()

    def _open(self) -> Effects:
        return Effects(self.engine, streams=Streams(self.files, "shard-0"))

    @property
    def streams(self) -> Streams:
        assert self.effects.streams is not None
        return self.effects.streams

    def crash(self) -> None:
        """The power goes; what is found afterwards."""
        self.effects.close()
        self.files.crash()
        self.engine.crash()
        self.effects = self._open()

    def messages(self, namespace: int) -> list[bytes]:
        """All of a partition, by as many reads as it takes."""
        end = self.streams.of(namespace).mark.end_offset
        found: list[bytes] = []
        while len(found) < end:
            for batch in self.streams.read(namespace, len(found), end=end, bytes_max=200):
                found += MessageBatch.decode(batch.payload).values
        return found


def batch(*values: bytes) -> bytes:
    return MessageBatch(values).encode()


def create(log: Log, *namespaces: int, options: Mapping[str, Any] | None = None) -> None:
    changes = [[namespace, dict(options or {})] for namespace in namespaces]
    body = msgpack.packb([1, changes, True])
    entry = log.append(encode_entry(log.stamp_ms, PARTITIONS_SET, body), CONTROL_PARTITION)
    assert split_reply(log.apply(entry))[0] == 0


def append(log: Log, namespace: int, *values: bytes, **rest: Any) -> Appended:
    """Propose an append; where it went, or its error raised."""
    header = {name: rest.pop(name) for name in ("client_id", "sequence") if name in rest}
    ask = Append(namespace, len(values), batch(*values), **rest)
    payload = encode_entry(log.stamp_ms, Kind.APPEND, ask.encode(), **header)
    code, body = split_reply(log.apply(log.append(payload, namespace)))
    if code:
        raise decode_error(body)
    found = REPLIES[Kind.APPEND].decode(body)
    assert isinstance(found, Appended)
    return found


def test_offsets_are_dense_and_each_partition_has_its_own() -> None:
    member = Member()
    log = Log(member.effects)
    create(log, ONE, TWO)
    assert append(log, ONE, b"a", b"b").offset == 0
    assert append(log, TWO, b"x").offset == 0
    assert append(log, ONE, b"c").offset == 2
    assert member.messages(ONE) == [b"a", b"b", b"c"]
    assert member.messages(TWO) == [b"x"]
    assert [mark.applied for mark in member.effects.watermarks({}) if mark.partition == ONE] == [2]


def append_many(log: Log, namespace: int, *batches: Sequence[bytes], **header: Any) -> Appended:
    """Several batches as one entry."""
    packed = [batch(*values) for values in batches]
    body = pack_append_many(namespace, [len(values) for values in batches], packed)
    payload = encode_entry(log.stamp_ms, Kind.APPEND_MANY, body, **header)
    code, reply = split_reply(log.apply(log.append(payload, namespace)))
    assert not code, decode_error(reply)
    return Appended.decode(reply)


def test_several_batches_of_one_entry_are_stored_each_by_itself_and_once() -> None:
    member = Member()
    log = Log(member.effects)
    create(log, ONE)
    log.do(SessionOpen(1_000), ALICE)
    append(log, ONE, b"0")
    member.effects.flush(b"m")
    for _ in range(2):
        done = append_many(
            log, ONE, [b"1", b"2"], [b"3"], [b"4", b"5", b"6"], client_id=ALICE, sequence=1
        )
        assert done.offset == 1
    member.crash()
    redo(member.effects, log.entries)
    assert member.messages(ONE) == [b"%d" % n for n in range(7)]
    member.effects.flush(b"m")
    found = member.streams.read(ONE, 0, end=7, bytes_max=1 << 20)
    assert [(each.offset, each.count) for each in found] == [(0, 1), (1, 2), (3, 1), (4, 3)]
    assert len({each.log_index for each in found}) == 2
    [mark] = [mark for mark in member.effects.watermarks({}) if mark.partition == ONE]
    assert mark.applied == 3, "of entries, a repeat among them"


def test_unknown_partitions_requests_and_offsets_are_refused_by_name() -> None:
    member = Member()
    log = Log(member.effects)
    with pytest.raises(NotFound, match="expected a partition of this shard"):
        append(log, ONE, b"a")
    create(log, TWO)
    payload = encode_entry(log.stamp_ms, Kind.PUT, b"")
    assert split_reply(log.apply(log.append(payload, TWO)))[0] == InvalidRequest.number
    with pytest.raises(NotFound, match="0x63"):
        member.streams.read(99, 0, end=1, bytes_max=10)
    with pytest.raises(InvalidRequest, match="5"):
        member.streams.read(TWO, 5, end=9, bytes_max=10)
    stream = member.streams.of(TWO)
    append(log, TWO, b"a", b"b")
    assert stream.log is not None
    stream.log.trim(1)
    with pytest.raises(Compacted) as error:
        member.streams.read(TWO, 0, end=2, bytes_max=10)
    assert error.value.first_available == 1


def test_repeats_in_a_session_and_of_a_producer_append_once() -> None:
    member = Member()
    log = Log(member.effects)
    create(log, ONE)
    log.do(SessionOpen(1_000), ALICE)
    for _ in range(2):
        assert append(log, ONE, b"a", client_id=ALICE, sequence=1).offset == 0
    first = append(log, ONE, b"b", producer=b"p", producer_sequence=7)
    log.stamp_ms += 50
    assert append(log, ONE, b"b", producer=b"p", producer_sequence=7) == first
    with pytest.raises(Conflict, match="above 7"):
        append(log, ONE, b"c", producer=b"p", producer_sequence=6)
    assert append(log, ONE, b"c", producer=b"p", producer_sequence=8).offset == 2
    member.effects.flush(b"m")
    member.crash()
    log.machines = [member.effects]
    assert append(log, ONE, b"c", producer=b"p", producer_sequence=8).offset == 2
    assert member.messages(ONE) == [b"a", b"b", b"c"]


def test_batch_that_is_beyond_what_readers_may_see_is_left_out() -> None:
    member = Member()
    log = Log(member.effects)
    create(log, ONE)
    append(log, ONE, b"a", b"b")
    append(log, ONE, b"c")
    assert len(member.streams.read(ONE, 0, end=3, bytes_max=1_000)) == 2
    assert len(member.streams.read(ONE, 0, end=2, bytes_max=1_000)) == 1
    assert member.streams.read(ONE, 0, end=1, bytes_max=1_000) == []


def test_damaged_partition_is_fenced_and_the_others_are_served() -> None:
    member = Member()
    log = Log(member.effects)
    create(log, ONE, TWO)
    for namespace in (ONE, TWO):
        append(log, namespace, b"a" * 100)
    member.effects.flush(b"m")
    path = member.streams.path(ONE)
    (name,) = member.files.listdir(path)
    member.files.remove(f"{path}/{name}")
    member.files.sync_dir(path)
    member.crash()
    log.machines = [member.effects]
    with pytest.raises(Corrupt, match=f"partition {ONE:#x} is fenced: PartitionDamaged"):
        member.messages(ONE)
    assert member.messages(TWO) == [b"a" * 100]
    # What others commit there still gets the same answer here: replicas agree.
    assert append(log, ONE, b"b").offset == 1
    assert append(log, TWO, b"b").offset == 1


def test_bit_that_flips_is_noticed_by_its_reader_and_fences_that_partition_alone() -> None:
    member = Member()
    log = Log(member.effects)
    create(log, ONE, TWO)
    for namespace in (ONE, TWO):
        append(log, namespace, b"a" * 100)
    member.effects.flush(b"m")
    path = member.streams.path(ONE)
    (name,) = member.files.listdir(path)
    file = member.files.open(f"{path}/{name}")
    at = file.size() - 20
    file.pwritev([bytes([file.pread(1, at)[0] ^ 1])], at)
    with pytest.raises(Corrupt, match="fenced"):
        member.messages(ONE)
    with pytest.raises(Corrupt, match="fenced"):
        member.streams.of(ONE)
    assert member.messages(TWO) == [b"a" * 100]


def test_disk_that_is_full_delays_the_files_and_loses_nothing() -> None:
    member = Member()
    log = Log(member.effects)
    create(log, ONE)
    append(log, ONE, b"a")
    member.files.capacity_bytes = member.files.used_bytes()
    for number in range(50):
        append(log, ONE, b"%d" % number * 400)
    everything = [b"a", *(b"%d" % number * 400 for number in range(50))]
    for _ in range(2):
        with pytest.raises(NoSpace):
            member.effects.flush(b"m")
        assert member.messages(ONE) == everything
        assert member.effects.durable_index == 0
    append(log, ONE, b"more")
    member.files.capacity_bytes = None
    member.effects.flush(b"m")
    member.crash()
    assert member.messages(ONE) == [*everything, b"more"]


def test_snapshot_brings_the_partitions_and_damage_in_it_is_noticed() -> None:
    member, late = Member(), Member(2)
    log = Log(member.effects)
    create(log, ONE, TWO, options={"segment_bytes": 300})
    for number in range(20):
        append(log, ONE, b"%d" % number * 30)
    append(log, TWO, b"x")
    parts = parts_of(member.effects)
    assert len([name for name in parts if name.startswith("stream-")]) > 3
    index = member.effects.applied_index
    for name in sorted(name for name in parts if name.startswith("stream-")):
        bad = bytearray(parts[name])
        bad[len(bad) // 2] ^= 8
        with pytest.raises(SnapshotCorrupt, match="damaged"):
            restore(late.effects, index, {**parts, name: bytes(bad)}, piece=100)
    restore(late.effects, index, parts, piece=100)
    late.crash()
    assert late.messages(ONE) == member.messages(ONE)
    assert late.messages(TWO) == [b"x"]
    assert parts_of(late.effects) == parts
    log.machines.append(late.effects)
    append(log, ONE, b"more")
    assert late.messages(ONE)[-1] == b"more"


def test_snapshot_without_partitions_still_knows_which_topics_it_has_seen() -> None:
    member, late = Member(), Member(2)
    log = Log(member.effects)
    create(log, ONE)
    body = msgpack.packb([2, [[ONE, None]], True])
    log.apply(log.append(encode_entry(log.stamp_ms, PARTITIONS_SET, body), CONTROL_PARTITION))
    restore(late.effects, member.effects.applied_index, parts_of(member.effects))
    assert (len(late.streams), late.streams.version) == (0, 2)


@given(st.integers(0, 1 << 32))
@settings(max_examples=40, deadline=None)
def test_any_history_with_crashes_gives_the_same_partitions(seed: int) -> None:
    rng = random.Random(seed)
    members = [Member(seed + n) for n in range(2)]
    log = Log(*(member.effects for member in members))
    model: dict[int, list[bytes]] = {ONE: [], TWO: []}
    create(log, ONE, TWO, options={"segment_bytes": 400})
    for step in range(60):
        namespace = rng.choice((ONE, TWO))
        values = [b"%d.%d" % (step, n) * rng.randint(1, 20) for n in range(rng.randint(1, 3))]
        append(log, namespace, *values)
        model[namespace] += values
        log.stamp_ms += rng.randint(0, 5)
        member = rng.choice(members)
        if rng.random() < 0.2:
            member.effects.flush(b"m")
        if rng.random() < 0.15:
            member.crash()
            redo(member.effects, log.entries)
            log.machines = [each.effects for each in members]
    for member in members:
        assert {name: member.messages(name) for name in model} == model
    assert parts_of(members[0].effects) == parts_of(members[1].effects)


def test_kept_rows_are_never_out_of_date() -> None:
    """Rows of the state are kept until their partition changes; made anew they are the same."""
    member = Member()
    log = Log(member.effects)
    create(log, ONE, TWO)

    def check() -> None:
        kept = member.streams.encode()
        for stream in member.streams:
            stream.packed = None
        assert member.streams.encode() == kept

    check()
    append(log, ONE, b"a", b"b")
    check()
    append(log, TWO, b"x", producer=b"p", producer_sequence=1)
    check()
    log.apply(log.append(encode_entry(log.stamp_ms, STREAM_TRIM, msgpack.packb(1)), ONE))
    assert member.streams.mark_of(ONE).first_offset == 1
    check()
    body = msgpack.packb([2, [[ONE, {"retention_ms": 5}]], True])
    log.apply(log.append(encode_entry(log.stamp_ms, PARTITIONS_SET, body), CONTROL_PARTITION))
    check()
    member.effects.flush(b"members")
    check()

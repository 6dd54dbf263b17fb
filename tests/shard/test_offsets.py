"""Offsets of groups: fenced by generations, never back unasked, all or none."""

from __future__ import annotations

import msgpack
import pytest

from shardnode.shard.offsets import Offsets
from shardnode.wire import limits
from shardnode.wire.errors import Conflict, InvalidRequest, LimitExceeded, NotFound


def end_of(namespace: int) -> int:
    if namespace > 9:
        raise NotFound("no such partition")
    return 100


def commit(
    offsets: Offsets, generation: int, *pairs: tuple[int, int], back: bool = False
) -> list[int | None]:
    namespaces = [namespace for namespace, _ in pairs]
    numbers = [number for _, number in pairs]
    offsets.commit("g", generation, namespaces, numbers, back=back, end_of=end_of)
    return offsets.fetch("g", namespaces)


def test_never_committed_is_told_from_zero() -> None:
    offsets = Offsets()
    assert offsets.claim("g", 3, [1, 2]) == [None, None]
    assert commit(offsets, 3, (1, 0)) == [0]
    assert offsets.fetch("g", [1, 2, 3]) == [0, None, None]
    assert offsets.fetch("h", [1]) == [None]


def test_offsets_go_back_only_when_told_to() -> None:
    offsets = Offsets()
    assert commit(offsets, 1, (1, 50), (2, 7)) == [50, 7]
    assert commit(offsets, 1, (1, 20), (2, 8)) == [50, 8]
    assert commit(offsets, 1, (1, 20), back=True) == [20]


def test_who_claimed_first_is_fenced_by_who_claims_later() -> None:
    offsets = Offsets()
    offsets.claim("g", 5, [1, 2])
    commit(offsets, 5, (1, 10))
    assert offsets.claim("g", 6, [1]) == [10]
    with pytest.raises(Conflict, match="generation 6"):
        commit(offsets, 5, (2, 10), (1, 11))
    assert offsets.fetch("g", [1, 2]) == [10, None], "none of it had an effect"
    with pytest.raises(Conflict):
        offsets.claim("g", 5, [1])
    assert commit(offsets, 5, (2, 10)) == [10]
    assert commit(offsets, 6, (1, 11)) == [11]


def test_offsets_past_the_end_and_of_unknown_partitions_are_refused() -> None:
    offsets = Offsets()
    with pytest.raises(InvalidRequest, match="up to 100"):
        commit(offsets, 1, (2, 5), (1, 101))
    with pytest.raises(NotFound):
        commit(offsets, 1, (2, 5), (10, 1))
    assert offsets.fetch("g", [1, 2]) == [None, None]
    assert commit(offsets, 1, (1, 100)) == [100]


def test_number_of_offsets_is_bounded_and_goes_down_with_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "group_offsets_max", 2)
    offsets = Offsets()
    commit(offsets, 1, (1, 1), (2, 2))
    commit(offsets, 1, (1, 2))
    with pytest.raises(LimitExceeded, match="group_offsets_max"):
        commit(offsets, 1, (3, 1))
    offsets.drop_others({2, 3})
    assert len(offsets) == 1
    commit(offsets, 1, (3, 1))
    assert offsets.fetch("g", [1, 2, 3]) == [None, 2, 1]
    again = Offsets.from_rows(msgpack.unpackb(msgpack.packb(offsets.rows())))
    assert again.rows() == offsets.rows()
    assert len(again) == 2

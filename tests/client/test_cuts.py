"""Pieces of a cut: in order, a few ahead, and from the one node that has it."""

from __future__ import annotations

import pytest

from shardnode.client.cuts import AHEAD, TIMEOUT_S, Cut, Pieces, request
from shardnode.wire.codec import Body
from shardnode.wire.cuts import CutKeep, CutKept, CutOpened, CutPiece, CutRead
from shardnode.wire.errors import NotFound, Unavailable
from shardnode.wire.kinds import Kind
from tests.client.kit import DIRECT, Bench, Sent

NUMBER = 77
OPENED = CutOpened(NUMBER, 2, 9, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, "")
CUT = Cut(1, OPENED)
ROUTER_2 = "tcp://router2:7400"


def pieces(size: int = 4, offset: int = 0) -> Pieces:
    def ask(at: int) -> tuple[Kind, Body]:
        return Kind.CUT_READ, CutRead(NUMBER, "keys", at, size)

    return Pieces(CUT, ask, size, offset)


def offset_of(sent: Sent) -> int:
    return CutRead.decode(sent.request.body).offset


def started(bench: Bench, stream: Pieces) -> list[Sent]:
    for call in stream.new_calls():
        bench.core.start(call, bench.now, TIMEOUT_S)
    return bench.sent()


def test_pieces_come_in_order_whoever_answers_first() -> None:
    bench = Bench(nodes=3)
    stream, data, content = pieces(), b"", b"abcdefghij"
    waiting: list[Sent] = []
    while not stream.over:
        waiting += started(bench, stream)
        assert len(waiting) <= AHEAD
        for sent in reversed(waiting):
            at = offset_of(sent)
            sent.answer(CutPiece(content[at : at + 4]))
        waiting = []
        assert all(call.done for call in stream.needed())
        data += stream.take()
    assert data == content


def test_a_stream_goes_on_at_an_offset_and_ends_with_a_short_piece() -> None:
    bench = Bench(nodes=3)
    stream = pieces(4, offset=8)
    first, second = started(bench, stream)
    assert [offset_of(first), offset_of(second)] == [8, 12]
    first.answer(CutPiece(b"1234"))
    second.answer(CutPiece(b""))
    assert (stream.take(), stream.over) == (b"1234", False)
    assert (stream.take(), stream.over) == (b"", True)


def test_nothing_is_asked_for_behind_a_known_end() -> None:
    bench = Bench(nodes=3)

    def ask(at: int) -> tuple[Kind, Body]:
        return Kind.CUT_READ, CutRead(NUMBER, "keys", at, 4)

    assert Pieces(CUT, ask, 4, 0, end=0).over, "an empty file costs nothing"
    stream = Pieces(CUT, ask, 4, 0, end=4)
    (sent,) = started(bench, stream)
    sent.answer(CutPiece(b"1234"))
    assert (stream.take(), stream.over) == (b"1234", True)


def test_a_cut_is_read_where_it_was_opened_whoever_leads() -> None:
    bench = Bench(nodes=3)
    (sent, _) = started(bench, pieces())
    assert sent.endpoint == DIRECT[1, 2]
    bench.core.disconnected(DIRECT[1, 2], bench.now)
    again = bench.sent()
    assert {each.endpoint for each in again} == {ROUTER_2}, "its router passes it on"
    bench.core.disconnected(ROUTER_2, bench.now)
    assert bench.sent() == [], "no other node has it"


def test_a_node_that_is_gone_is_told_when_the_time_is_over() -> None:
    bench = Bench(nodes=3)
    call = request(CUT, Kind.CUT_KEEP, CutKeep(NUMBER, 30_000), CutKept)
    bench.core.start(call, bench.now, TIMEOUT_S)
    for endpoint in (DIRECT[1, 2], ROUTER_2):
        bench.sent()
        bench.core.disconnected(endpoint, bench.now)
    bench.wait(TIMEOUT_S + 1)
    assert call.done
    with pytest.raises(Unavailable, match="CUT_KEEP to shard 1"):
        call.result()


def test_a_cut_that_is_not_known_any_more_is_told_at_once() -> None:
    bench = Bench(nodes=3)
    stream = pieces()
    sent, _ = started(bench, stream)
    sent.answer(NotFound("open another one"))
    with pytest.raises(NotFound):
        stream.take()
    assert len(stream.under_way()) == 1

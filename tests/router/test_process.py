"""A real router process between real sockets."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator

import pytest
import zmq

from shardnode.router.lanes import LARGE_BYTES_MAX
from shardnode.router.sockets import CLIENT_QUEUE
from shardnode.wire.errors import MalformedFrame, Overloaded, Unavailable
from shardnode.wire.frames import Frame, build_reply, build_request, parse_reply, parse_request
from shardnode.wire.kinds import Kind
from shardnode.wire.replies import decode_error
from shardnode.wire.requests import Status
from tests.router.kit import TIMEOUT_MS, RouterProcess, put, running_router, take


@pytest.fixture
def router() -> Iterator[RouterProcess]:
    with running_router() as running:
        yield running


def answer(worker: zmq.Socket[bytes], parts: list[bytes], shard: int, body: bytes = b"ok") -> None:
    request = parse_request(parts[2:])
    worker.send_multipart([*parts[:2], *build_reply(request.return_address(), body, shard=shard)])


def test_request_reaches_its_worker_unchanged_and_the_reply_its_client(
    router: RouterProcess,
) -> None:
    router.start_worker(0)
    worker = router.start_worker(1)
    frames: list[Frame] = put(prefix=1, sequence=5, body=os.urandom(100_000))
    router.client.send_multipart(frames)
    parts = take(worker)
    assert parts[2:] == frames
    answer(worker, parts, 1, b"done")
    reply = router.answer()
    assert (reply.shard, reply.header.sequence, bytes(reply.body)) == (1, 5, b"done")


def test_legacy_request_goes_to_shard_0_and_its_delimiter_comes_back(router: RouterProcess) -> None:
    worker = router.start_worker(0)
    router.client.send_multipart(put(prefix=None, delimited=True))
    answer(worker, take(worker), 0)
    reply = router.answer()
    assert (reply.shard, reply.delimited, bytes(reply.body)) == (None, True, b"ok")


def test_plain_req_socket_is_served(router: RouterProcess) -> None:
    worker = router.start_worker(0)
    client = router.context.socket(zmq.REQ)
    client.connect(router.listen)
    client.send_multipart(put(prefix=None))
    answer(worker, take(worker), 0)
    assert client.poll(TIMEOUT_MS)
    assert bytes(parse_reply(client.recv_multipart()).body) == b"ok"


def test_worker_that_is_down_is_answered_for_at_once(router: RouterProcess) -> None:
    router.start_worker(0)
    error = decode_error(router.ask(put(prefix=1)).body)
    assert isinstance(error, Unavailable)
    assert "shard 1" in error.message


def test_worker_comes_back_and_is_found_again(router: RouterProcess) -> None:
    worker = router.start_worker(1)
    router.client.send_multipart(put(prefix=1))
    answer(worker, take(worker), 1)
    assert bytes(router.answer().body) == b"ok"
    for _ in range(3):
        router.stop_worker(1)
        while not isinstance(refusal(router, put(prefix=1)), Unavailable):
            pass
        worker = router.start_worker(1)
        router.client.send_multipart(put(prefix=1, body=b"again"))
        answer(worker, take(worker), 1, b"back")
        assert bytes(router.answer().body) == b"back"


def refusal(router: RouterProcess, frames: list[Frame]) -> Exception | None:
    """The error, if one comes; a request that was still taken by a closing socket has none."""
    router.client.send_multipart(frames)
    if not router.client.poll(200):
        return None
    return decode_error(parse_reply(router.client.recv_multipart()).body)


@pytest.mark.parametrize(
    "frames",
    [[b"x"], [b""], [b"\0\0\0\1", b"y"], [b"SNRQ", b"", b"", b""], [b""] * 9],
    ids=["short", "empty", "cut off", "magic alone", "many"],
)
def test_garbage_is_answered_with_a_typed_error(router: RouterProcess, frames: list[Frame]) -> None:
    error = decode_error(router.ask(frames).body)
    assert error.code == "invalid_request"
    assert isinstance(error, MalformedFrame) or "frames_max" in error.message


def test_oversized_frame_disconnects_its_sender_alone(router: RouterProcess) -> None:
    worker = router.start_worker(1)
    bad = router.connect()
    bad.send_multipart([*put(prefix=1)[:-1], bytes(17 << 20)])
    router.client.send_multipart(put(prefix=1))
    answer(worker, take(worker), 1)
    assert bytes(router.answer().body) == b"ok"
    assert not worker.poll(100)


def test_stranger_who_speaks_another_protocol_does_no_harm(router: RouterProcess) -> None:
    router.hear()  # it listens now
    host, port = router.listen.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + os.urandom(1_000))
    assert isinstance(decode_error(router.ask(put(prefix=0)).body), Unavailable)


def test_client_that_does_not_read_loses_replies_and_stops_nobody(router: RouterProcess) -> None:
    worker = router.start_worker(1)
    slow = router.connect(RCVHWM=1, RCVBUF=4_096)
    slow.send_multipart(put(prefix=1))
    parts = take(worker)
    for _ in range(2 * CLIENT_QUEUE):
        answer(worker, parts, 1, bytes(20_000))
    router.client.send_multipart(put(prefix=1))
    answer(worker, take(worker), 1)
    assert bytes(router.answer().body) == b"ok"
    assert router.counters_until("replies_dropped", 1)


def test_reply_to_a_client_that_is_gone_is_counted(router: RouterProcess) -> None:
    worker = router.start_worker(1)
    router.client.send_multipart(put(prefix=1))
    parts = take(worker)
    answer(worker, [parts[0], b"nobody", *parts[2:]], 1)
    router.counters_until("replies_unaddressed", 1)


def test_large_requests_to_a_worker_that_hangs_are_refused_in_time(router: RouterProcess) -> None:
    worker = router.start_worker(1)  # never reads
    size = 8 << 20
    for sequence in range(LARGE_BYTES_MAX // size + 1):
        router.client.send_multipart(put(prefix=1, sequence=sequence, body=bytes(size)))
    reply = router.answer()
    assert isinstance(decode_error(reply.body), Overloaded)
    first = take(worker)
    answer(worker, first, 1)
    assert router.answer().header.sequence == 0
    router.client.send_multipart(put(prefix=1, sequence=99, body=bytes(size)))
    assert router.client.poll(200) == 0  # taken, for there is room again


def test_status_is_what_the_supervisor_told(router: RouterProcess) -> None:
    indexes = (
        *("term", "commit_index", "applied_index", "durable_index", "truncation_index"),
        *("needed_index", "snapshot_index", "log_bytes"),
    )
    rows = [
        {"id": shard, "pid": 10 + shard, "core": None, "role": "leader", "leader": 1}
        | {"state": "serving", "restarts": shard, "digest": "00ff" * 4}
        | {"error": "damaged", "watermarks": [[7, 4, 3, 2]]}
        | dict.fromkeys(indexes, 4)
        for shard in range(2)
    ]
    router.tell({"status": {"shards": rows}})
    router.hear()
    request = build_request(Kind.STATUS, Status().encode(), prefix=0xFFFFFFFF)
    while b"starting" in (body := bytes(router.ask(request).body)):
        pass
    assert b"serving" in body


def test_router_goes_at_once_when_its_supervisor_does(router: RouterProcess) -> None:
    router.hear()
    assert router.process.stdin is not None
    router.process.stdin.close()
    assert router.process.wait(3) != 0


@pytest.mark.parametrize("how", ["line", "signal"])
def test_stop_is_clean_and_waits_for_replies_under_way(router: RouterProcess, how: str) -> None:
    worker = router.start_worker(1)
    router.client.send_multipart(put(prefix=1))
    parts = take(worker)
    if how == "line":
        router.tell({"stop": True})
    else:
        router.signal(signal.SIGTERM)
    while router.hear()["state"] != "stopping":
        pass
    assert isinstance(decode_error(router.ask(put(prefix=1)).body), Unavailable)
    answer(worker, parts, 1, b"in time")
    assert bytes(router.answer().body) == b"in time"
    assert router.process.wait(3) == 0


def test_interrupt_from_the_terminal_is_left_to_the_supervisor(router: RouterProcess) -> None:
    router.hear()
    router.signal(signal.SIGINT)
    assert isinstance(decode_error(router.ask(put(prefix=0)).body), Unavailable)


def test_taken_port_ends_the_router_with_a_word(
    router: RouterProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    router.hear()
    second = RouterProcess(listen=router.listen)
    try:
        assert second.process.wait(TIMEOUT_MS / 1_000) == 3
    finally:
        second.close()
    assert f"cannot listen on {router.listen}" in capfd.readouterr().err

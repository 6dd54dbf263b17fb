"""A worker that only speaks the channel: state lines, both sockets, an echo for an answer.

    fake_worker.py [TROUBLE:SHARD]...    crash: dies at once; deaf: ignores every request to stop;
                                         silent: says nothing at all; leaderless; fenced; table:
                                         sends one; chatty: more words than lines

It is started exactly as a real one is, so the supervisor and the router cannot tell.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from base64 import b64encode
from typing import Any

import orjson
import zmq

from shardnode.wire.frames import build_reply, parse_request
from shardnode.wire.placement import PlacementTable

BEAT_S = 0.1


def main(words: list[str]) -> int:
    line = orjson.loads(sys.stdin.buffer.readline())
    shard = line["shard"]
    troubles = {word.partition(":")[0] for word in words if word.endswith(f":{shard}")}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "crash" in troubles:
        return 7
    if "deaf" in troubles:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "chatty" in troubles:
        os.write(1, b"this is not JSON\n[1]\n")
    if line["core"] is not None:
        os.sched_setaffinity(0, {line["core"]})
    serve(line, troubles)
    return 0


def serve(line: dict[str, Any], troubles: set[str]) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inner, direct = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)
    inner.bind(line["ipc"])
    direct.bind(line["direct"])
    poller = zmq.Poller()
    for source in (inner, direct, 0):
        poller.register(source, zmq.POLLIN)
    beat_at = 0.0
    first = True
    while True:
        if time.monotonic() >= beat_at and "silent" not in troubles:
            os.write(1, orjson.dumps(state_of(line, troubles, first)) + b"\n")
            beat_at = time.monotonic() + BEAT_S
            first = False
        for source, _ in poller.poll(int(BEAT_S * 1_000)):
            if source == 0:
                if is_over(troubles):
                    os._exit(0)
            elif isinstance(source, zmq.Socket):
                answer(source, line["shard"], 2 if source is inner else 1)


def is_over(troubles: set[str]) -> bool:
    """Whether the supervisor is gone, or says stop."""
    words = os.read(0, 65536)
    return not words or (b'"stop"' in words and "deaf" not in troubles)


def answer(source: zmq.Socket[bytes], shard: int, envelope: int) -> None:
    """The body comes back as it is, from the shard that got it."""
    parts = source.recv_multipart()
    request = parse_request(parts[envelope:])
    reply = build_reply(request.return_address(), request.body, shard=shard)
    source.send_multipart([*parts[:envelope], *reply])


def state_of(line: dict[str, Any], troubles: set[str], first: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "state": "fenced" if "fenced" in troubles else "serving",
        "role": "leader",
        "leader": None if "leaderless" in troubles else line["node"],
        "term": 1,
        "commit_index": 5,
        "applied_index": 5,
        "durable_index": 5,
        "truncation_index": 2,
        "epoch": 1,
        "error": "damaged" if "fenced" in troubles else "",
        "counters": {"requests_total": 3, "waiting": 1, "odd name!": 2},
    }
    if "table" in troubles and first:
        everything_on_0 = PlacementTable(9, line["shards"], bytes(16_384))
        fields["table"] = b64encode(everything_on_0.encode()).decode()
    return fields


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

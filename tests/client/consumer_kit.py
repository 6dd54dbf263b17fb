"""What the tests of consumers share: a topic that has something, and patience."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from shardnode import Client, Consumer, Message, Topic

SESSION_S = 1.0


def until(condition: Callable[[], Any], timeout_s: float = 15.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)
    return value


def filled(db: Client, partitions: int = 4, each: int = 5) -> Topic:
    topic = db.create_topic("t", partitions=partitions)
    for number in range(partitions):
        topic.append([b"%d:%d" % (number, n) for n in range(each)], partition=number)
    return topic


def read(consumer: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    give_up = time.monotonic() + 15
    while len(found) < count:
        found += consumer.poll(timeout=1)
        assert time.monotonic() < give_up, f"{len(found)} of {count} came"
    assert len(found) == count
    return found


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "shardnode-consumer"]

"""One member of a group, as a process of its own: `python -m shardnode.testing.group_member`.

    group_member ADDRESSES TOPIC GROUP FILE SEED

It reads what it is given, writes each message down in FILE, and only then commits: what a process
that dies has done is there, and what it has not is left to others. SIGTERM lets it leave in order.

The one rule: a line is written for every message before it is committed.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from random import Random

from shardnode.client import Client, Conflict, ShardnodeError
from shardnode.client.messages import Message

SESSION_S = 3.0
POLL_S = 0.3


class Member:
    """Until it is told to leave."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._leaving = False
        signal.signal(signal.SIGTERM, self._leave)

    def _leave(self, *_: object) -> None:
        self._leaving = True

    def run(self, addresses: Sequence[str], topic: str, group: str, path: str) -> None:
        with (
            open(path, "a", encoding="utf-8", buffering=1) as file,
            Client(addresses) as db,
            db.topic(topic).consumer(group=group, session_timeout=SESSION_S) as consumer,
        ):
            while not self._leaving:
                try:
                    messages = consumer.poll(POLL_S, self._random.choice([1, 10, 100, 1000]))
                except ShardnodeError as error:
                    sys.stderr.write(f"poll: {error!r}\n")
                    continue
                done = messages[: self._random.randint(0, len(messages))] if messages else []
                file.writelines(_line(message) for message in messages)
                try:
                    if done and self._random.random() < 0.5:
                        consumer.commit(done[-1])
                    elif self._random.random() < 0.5:
                        consumer.commit(messages)
                    else:
                        consumer.commit()
                except Conflict:
                    continue  # somebody else reads on from what was committed last
                except ShardnodeError as error:
                    sys.stderr.write(f"commit: {error!r}\n")


def _line(message: Message) -> str:
    return f"{message.partition} {message.offset} {message.value.decode()}\n"


def main(words: Sequence[str]) -> None:
    addresses, topic, group, path, seed = words
    Member(int(seed)).run(addresses.split(","), topic, group, path)


if __name__ == "__main__":
    main(sys.argv[1:])

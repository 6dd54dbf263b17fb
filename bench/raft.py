"""How many proposals a second the consensus core can take: three members in memory, on one core.

Nothing is written and nothing is sent: what is measured is `shardnode.raft` alone, everything that
all three members do for one proposal included. Exits with 1 below the promised rate.

    .venv/bin/python bench/raft.py --seconds 3 --batch 64
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence

from shardnode.raft import Entry, Membership, Message, Proposal, Raft, Role

PROPOSALS_PER_SECOND_MIN = 20_000
MEMBERS = (1, 2, 3)
PAYLOAD = bytes(100)


class MemoryLog:
    """A log that is durable as soon as it is appended to."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def anchor(self) -> tuple[int, int]:
        return 0, 0

    def last(self) -> tuple[int, int]:
        return (len(self.entries), self.entries[-1].term) if self.entries else (0, 0)

    def term(self, index: int) -> int:
        return self.entries[index - 1].term if index else 0

    def read(self, first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        fits = max(1, bytes_max // len(PAYLOAD))
        return self.entries[first - 1 : min(last, first - 1 + fits)]

    def append_batch(self, entries: Sequence[Entry]) -> None:
        self.entries[entries[0].index - 1 :] = entries


class Group:
    """Three members, and the loop of the contract for each of them."""

    def __init__(self) -> None:
        self.logs = {member: MemoryLog() for member in MEMBERS}
        self.members = {member: self._member(member) for member in MEMBERS}
        self.inboxes: dict[int, list[Message]] = {member: [] for member in MEMBERS}

    def _member(self, member: int) -> Raft:
        return Raft(
            cluster=1,
            member=member,
            membership=Membership.of(MEMBERS),
            log=self.logs[member],
            rng=random.Random(member),
            now_ms=0,
        )

    def elect(self) -> Raft:
        leader = self.members[MEMBERS[0]]
        leader.tick(2 * leader.options.election_timeout_ms)
        self.settle()
        assert leader.role is Role.LEADER
        return leader

    def settle(self) -> None:
        """Deliver until nobody has anything to say."""
        self.pump_all()
        while any(self.inboxes.values()):
            self.pump_all()

    def pump_all(self) -> None:
        for member, raft in self.members.items():
            inbox, self.inboxes[member] = self.inboxes[member], []
            for message in inbox:
                raft.step(message)
            self.pump(raft)

    def pump(self, raft: Raft) -> None:
        while (ready := raft.ready()) is not None:
            self.send(ready.messages)
            if ready.entries:
                self.logs[raft.member].append_batch(ready.entries)
            if ready.must_persist:
                raft.persisted(ready.persist_index, ready.persist_term)
            self.send(ready.after_persist)
            if ready.committed:
                raft.applied(ready.committed[-1].index)

    def send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.inboxes[message.target].append(message)


def measure(seconds: float, batch: int) -> float:
    """Proposals committed in a second."""
    group = Group()
    leader = group.elect()
    proposals = [Proposal(1, 1, PAYLOAD)] * batch
    first = leader.commit_index
    offset_ms = leader.now_ms
    start = now = time.perf_counter()
    while now < start + seconds:
        leader.tick(offset_ms + int(1000 * (now - start)))
        leader.propose(proposals)
        group.settle()
        now = time.perf_counter()
    assert leader.commit_index == leader.log.last_index, "something was not committed"
    return (leader.commit_index - first) / (now - start)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--batch", type=int, default=64, help="proposals in one batch")
    arguments = parser.parse_args()
    rate = measure(arguments.seconds, arguments.batch)
    enough = rate >= PROPOSALS_PER_SECOND_MIN
    print(
        f"{rate:,.0f} proposals/s of {len(PAYLOAD)} bytes in batches of {arguments.batch}: "
        f"{'at least' if enough else 'UNDER'} {PROPOSALS_PER_SECOND_MIN:,}"
    )
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())

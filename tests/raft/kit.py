"""A group of hosts, links under the test's control, and words for the messages of a test.

The one rule: nothing moves unless the test says so. Each host has a clock of its own: `tick` moves
one, `advance` moves all of them together and delivers on the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeVar

from shardnode.raft import Entry, HardState, Membership, Message, Options, Role
from shardnode.raft.messages import Append, Heartbeat, PreVote, Vote
from tests.raft.host import CLUSTER, PARTITION, STEPS_MAX, Disk, Host, MemoryLog
from tests.raft.narrator import Silence
from tests.raft.observer import Observer

TIMEOUT_MS = Options().election_timeout_ms
HEARTBEAT_MS = Options().heartbeat_ms
RESEND_MS = Options().resend_ms

Kind = TypeVar("Kind", bound=Message)


class Group:
    """Hosts, and what is under way between them."""

    def __init__(self) -> None:
        self.options = Options()
        self.hosts: dict[int, Host] = {}
        self.links: dict[tuple[int, int], deque[Message]] = {}
        self.cuts: set[tuple[int, int]] = set()
        self.states: dict[bytes, tuple[Entry, ...]] = {}
        self.observer = Observer(self)
        self.narrator = Silence()

    def __getitem__(self, member: int) -> Host:
        return self.hosts[member]

    # -- members ------------------------------------------------------------------------------

    def add(
        self,
        member: int,
        *,
        voters: Iterable[int],
        learners: Iterable[int] = (),
        terms: Sequence[int] = (),
        term: int = 0,
        vote: int = 0,
        recovering: bool = False,
    ) -> Host:
        """A member with a log of one entry per given term, and that term and vote on disk."""
        entries = run_of(1, *terms)
        disk = Disk(Membership.of(voters, (), learners), MemoryLog(entries))
        disk.hard_state = HardState(max([term, *terms]), vote, recovering)
        self.observer.seeded(entries)
        self.hosts[member] = Host(self, member, disk)
        return self.hosts[member]

    def start(self, *voters: int, learners: Iterable[int] = ()) -> Group:
        """Empty members that know each other."""
        learners = tuple(learners)
        for member in (*voters, *learners):
            self.add(member, voters=voters, learners=learners)
        return self

    def crash(self, member: int) -> None:
        """It forgets what was not durable; what it sent is still under way."""
        self[member].alive = False

    def restart(self, member: int) -> Host:
        host = self[member]
        host.alive = False
        host.persist_late = False
        host.boot()
        host.drain()
        return host

    # -- time and elections -------------------------------------------------------------------

    def alive(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.alive]

    def tick(self, member: int, ms: int = 0) -> list[Message]:
        return self[member].tick(ms)

    def advance(self, ms: int, step_ms: int = 50) -> None:
        """Time passes everywhere at once, and the network keeps up."""
        while ms > 0:
            for host in self.alive():
                host.tick(min(step_ms, ms))
            self.settle()
            ms -= step_ms

    def elect(self, member: int) -> Host:
        """Everybody loses patience with the leader they have, `member` first."""
        for host in self.alive():
            later = 0 if host.member == member else TIMEOUT_MS
            host.raft.election_deadline_ms = host.clock_ms + TIMEOUT_MS + later
            if host.raft.role is Role.LEADER and host.member != member:
                host.tick(TIMEOUT_MS)
            elif host.member != member:
                host.raft.tick(host.clock_ms + TIMEOUT_MS)
                host.clock_ms += TIMEOUT_MS
        for queue in self.links.values():
            queue.clear()
        self[member].tick(TIMEOUT_MS)
        self.settle()
        assert self[member].raft.role is Role.LEADER, f"{member} was not elected"
        return self[member]

    def leader(self) -> Host:
        """The one that leads in the highest term."""
        leading = [host for host in self.alive() if host.raft.role is Role.LEADER]
        return max(leading, key=lambda host: host.raft.term)

    # -- work ---------------------------------------------------------------------------------

    def propose(self, member: int, *payloads: bytes) -> int:
        """Propose one batch and send it; the index of the first."""
        first = self[member].propose(*payloads)
        self[member].drain()
        return first

    def commit(self, member: int, *payloads: bytes) -> int:
        """Propose one batch, let it reach everybody, and let everybody know; the last index."""
        last = self.propose(member, *payloads) + len(payloads) - 1
        self.settle()
        self[member].tick(self.options.heartbeat_ms)
        self.settle()
        assert self[member].raft.commit_index >= last, f"index {last} was not committed"
        return last

    def change(self, member: int, voters: Iterable[int], learners: Iterable[int] = ()) -> int:
        index = self[member].raft.change_config(list(voters), list(learners))
        self[member].drain()
        return index

    # -- the network --------------------------------------------------------------------------

    def under_way(self, source: int, target: int) -> list[Message]:
        return list(self.links.get((source, target), ()))

    def deliver(self, source: int = 0, target: int = 0) -> int:
        """One hop: what is under way now, on every link or (0 is any) on one. How many arrived."""
        hop = [(link, list(queue)) for link, queue in self._chosen(source, target) if queue]
        self.drop(source, target)
        count = 0
        for link, messages in hop:
            if link not in self.cuts and self._reachable(link[1]):
                count += len(messages)
                self[link[1]].receive(*messages)
        return count

    def drop(self, source: int = 0, target: int = 0) -> int:
        """The network loses what is under way there. How many messages that were."""
        chosen = self._chosen(source, target)
        count = sum(len(queue) for _, queue in chosen)
        for _, queue in chosen:
            queue.clear()
        return count

    def _chosen(self, source: int, target: int) -> list[tuple[tuple[int, int], deque[Message]]]:
        return [
            (link, queue)
            for link, queue in sorted(self.links.items())
            if source in (0, link[0]) and target in (0, link[1])
        ]

    def _reachable(self, member: int) -> bool:
        return member in self.hosts and self[member].alive

    def settle(self) -> None:
        """Deliver until nothing is under way."""
        for _ in range(STEPS_MAX):
            if not any(self.links.values()):
                return
            self.deliver()
        raise AssertionError("the members never stop talking")

    def cut(self, one: int, other: int) -> None:
        """Nothing passes between the two, in either direction."""
        self.cuts |= {(one, other), (other, one)}

    def isolate(self, member: int) -> None:
        for other in self.hosts:
            if other != member:
                self.cut(member, other)

    def heal(self) -> None:
        self.cuts.clear()

    def check_invariants(self) -> None:
        """What must hold of any group at any time; the fixture calls it after every test."""
        self.observer.check()


# -- words for what peers say -------------------------------------------------------------------


def run_of(first: int, *terms: int) -> tuple[Entry, ...]:
    """Entries from index `first` on, one for each term; equal places have equal contents."""
    return tuple(
        Entry(index, term, PARTITION, index, b"old %d" % index)
        for index, term in enumerate(terms, first)
    )


def vote(
    source: int, target: int, term: int, log: tuple[int, int] = (0, 0), *, forced: bool = False
) -> Vote:
    """`log` is index and term of the candidate's last entry."""
    return Vote(CLUSTER, source, target, term, *log, forced)


def pre_vote(source: int, target: int, term: int, log: tuple[int, int] = (0, 0)) -> PreVote:
    return PreVote(CLUSTER, source, target, term, *log)


def append(
    source: int,
    target: int,
    term: int,
    entries: Sequence[Entry] = (),
    *,
    prev: tuple[int, int] = (0, 0),
    commit: int = 0,
    stamp: int = 1,
) -> Append:
    """`prev` is index and term of the entry before the first."""
    return Append(CLUSTER, source, target, term, stamp, *prev, commit, entries)


def heartbeat(
    source: int,
    target: int,
    term: int,
    *,
    commit: int = 0,
    stamp: int = 1,
    last: int = 0,
    recovery: int = 0,
) -> Heartbeat:
    """`last` is where the leader's log ends, `recovery` the nonce that it has heard."""
    return Heartbeat(CLUSTER, source, target, term, stamp, commit, last, recovery)


def only(kind: type[Kind], messages: Iterable[Message]) -> Kind:
    """The one message of that kind."""
    [found] = all_of(kind, messages)
    return found


def all_of(kind: type[Kind], messages: Iterable[Message]) -> list[Kind]:
    return [message for message in messages if isinstance(message, kind)]


def role_of(host: Host) -> Role:
    """A call, so that a type checker does not take the role for settled."""
    return host.raft.role


def terms_of(host: Host) -> list[int]:
    """The log of a member as the terms of its entries."""
    return [entry.term for entry in host.disk.log.entries]

"""Members in any order of events: whatever the network, the disks and the clients do, it is safe.

Hypothesis chooses what happens next; the group's observer checks as it happens that a term has one
leader, logs match, leaders are complete, commits never go back, nothing leaves before it is durable
and no read is stale. In the end everything heals, and the group has to work again.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shardnode.raft import Message, Refused, Role
from tests.raft.host import Host
from tests.raft.kit import HEARTBEAT_MS, RESEND_MS, TIMEOUT_MS, Group

PICK = st.integers(0, 1 << 16)
"""Chooses among whatever there is at that moment."""

HOPS = st.integers(0, 6)
"""How far the network gets: an election takes four, a commit two."""


class AnyOrder(RuleBasedStateMachine):
    """What may happen to a group."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group()
        self.proposed = 0
        self.may_lose_log = True

    @initialize(size=st.integers(3, 5))
    def begin(self, size: int) -> None:
        self.group.start(*range(1, size + 1))
        self.group.add(size + 1, voters=())
        self.group.elect(1)

    def host(self, pick: int) -> Host:
        """Any member, up or down."""
        return list(self.group.hosts.values())[pick % len(self.group.hosts)]

    def leaders(self) -> list[Host]:
        """Who believes to lead; there may be several, of different terms."""
        return [host for host in self.group.alive() if host.raft.role is Role.LEADER]

    def links(self) -> list[tuple[int, int]]:
        return sorted(link for link, queue in self.group.links.items() if queue)

    def somebody_leads(self) -> bool:
        return bool(self.leaders())

    def something_is_under_way(self) -> bool:
        return bool(self.links())

    # -- network ------------------------------------------------------------------------------

    @precondition(something_is_under_way)
    @rule(pick=PICK, place=PICK, again=st.booleans())
    def deliver_one(self, pick: int, place: int, again: bool) -> None:
        """In any order; sometimes a copy stays under way."""
        source, target = self.links()[pick % len(self.links())]
        queue = self.group.links[source, target]
        message = queue[place % len(queue)]
        if not again:
            queue.remove(message)
        self.arrive((source, target), message)

    def arrive(self, link: tuple[int, int], message: Message) -> None:
        if link not in self.group.cuts and self.group[link[1]].alive:
            self.group[link[1]].receive(message)

    @rule(count=HOPS, keep=st.booleans())
    def hops(self, count: int, keep: bool) -> None:
        """The network is quick for a while; copies of what was under way may come later."""
        before = {link: list(queue) for link, queue in self.group.links.items()}
        for _ in range(count):
            self.group.deliver()
        if keep:
            for link, messages in before.items():
                self.group.links[link].extend(messages[-3:])

    @rule(pick=PICK, other=PICK, what=st.sampled_from(["cut", "isolate", "heal", "heal", "drop"]))
    def network(self, pick: int, other: int, what: str) -> None:
        one, two = self.host(pick).member, self.host(other).member
        if what == "cut":
            self.group.cut(one, two)
        elif what == "isolate":
            self.group.isolate(one)
        elif what == "heal":
            self.group.heal()
        else:
            self.group.drop(one, two)

    # -- time: leases allow clocks to run a tenth apart, not more -----------------------------

    @rule(ms=st.sampled_from([10, HEARTBEAT_MS, RESEND_MS]), count=HOPS)
    def time_passes(self, ms: int, count: int) -> None:
        for host in self.group.hosts.values():
            if host.alive:
                host.tick(ms)
            else:
                host.clock_ms += ms
        self.hops(count, keep=False)

    @rule(pick=PICK, count=HOPS)
    def somebody_loses_patience(self, pick: int, count: int) -> None:
        """One election timeout passes in silence; chance has it that this member is the first."""
        for host in self.group.alive():
            first = host is self.host(pick)
            wait_ms = TIMEOUT_MS if first else 2 * TIMEOUT_MS - 1
            host.raft.election_deadline_ms = host.clock_ms + wait_ms
        self.time_passes(TIMEOUT_MS, count)

    # -- members and disks --------------------------------------------------------------------

    @rule(pick=PICK, stays_down=st.booleans())
    def crash(self, pick: int, stays_down: bool) -> None:
        host = self.host(pick)
        if host.alive and stays_down:
            self.group.crash(host.member)
        else:
            self.group.restart(host.member)

    @precondition(lambda self: self.may_lose_log)
    @rule(pick=PICK)
    def lose_log(self, pick: int) -> None:
        """Once: what a majority forgets at the same time is gone for good."""
        self.may_lose_log = False
        host = self.host(pick)
        self.group.crash(host.member)
        host.lose_log()
        self.group.restart(host.member)

    @rule(pick=PICK, late=st.booleans())
    def disk_is_slow(self, pick: int, late: bool) -> None:
        host = self.host(pick)
        if late:
            host.persist_late = True
        elif host.alive:
            host.release()

    @rule(pick=PICK, full=st.booleans())
    def disk_is_full(self, pick: int, full: bool) -> None:
        self.host(pick).disk_full = full

    @rule(pick=PICK, keep=st.integers(0, 3))
    def compact(self, pick: int, keep: int) -> None:
        host = self.host(pick)
        log, applied = host.disk.log, host.raft.applied_index
        if host.alive and host.held is None and log.anchor_index < applied <= log.last()[0]:
            host.compact(keep)

    @rule(pick=PICK)
    def install(self, pick: int) -> None:
        host = self.host(pick)
        if host.alive and host.held is None and host.wanted is not None:
            host.install()

    # -- clients ------------------------------------------------------------------------------

    @precondition(somebody_leads)
    @rule(pick=PICK, size=st.integers(1, 3), count=HOPS)
    def propose(self, pick: int, size: int, count: int) -> None:
        host = self.leaders()[pick % len(self.leaders())]
        payloads = [b"%d" % (self.proposed + i) for i in range(size)]
        self.proposed += size
        try:
            host.propose(*payloads)
        except Refused:
            return
        host.drain()
        self.hops(count, keep=False)

    @precondition(somebody_leads)
    @rule(pick=PICK, lease=st.booleans())
    def read(self, pick: int, lease: bool) -> None:
        host = self.leaders()[pick % len(self.leaders())]
        self.proposed += 1
        host.read(self.proposed, lease=lease)
        host.drain()

    @precondition(somebody_leads)
    @rule(pick=PICK, voters=st.sets(st.integers(1, 6), min_size=1))
    def change(self, pick: int, voters: set[int]) -> None:
        host = self.leaders()[pick % len(self.leaders())]
        everyone = set(self.group.hosts)
        wanted = voters & everyone or everyone
        try:
            host.raft.change_config(sorted(wanted), sorted(everyone - wanted))
        except Refused:
            return
        host.drain()

    @precondition(somebody_leads)
    @rule(pick=PICK, other=PICK)
    def transfer(self, pick: int, other: int) -> None:
        host = self.leaders()[pick % len(self.leaders())]
        try:
            host.raft.transfer(self.host(other).member)
        except Refused:
            return
        host.drain()

    # -- what has to hold ---------------------------------------------------------------------

    @invariant()
    def nothing_contradicts(self) -> None:
        self.group.check_invariants()

    def teardown(self) -> None:
        """Everything heals: somebody leads, and a write reaches all of the group."""
        group = self.group
        if not group.hosts:
            return
        group.heal()
        for host in group.hosts.values():
            host.disk_full = False
            group.restart(host.member)
        if any(host.raft.recovering for host in group.hosts.values()):
            return  # Its vote may be the one that is missing.
        for _ in range(12):
            group.advance(TIMEOUT_MS)
            for host in group.alive():
                if host.wanted is not None:
                    host.install()
        index = group.commit(group.leader().member, b"last")
        for member in group.leader().raft.membership.everyone:
            assert group[member].raft.applied_index >= index, f"{member} is left behind"


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=250, stateful_step_count=50, derandomize=True, deadline=None
)

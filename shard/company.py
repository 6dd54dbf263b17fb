"""The other members of a worker's group: what is said to them, and what becomes of what they say.

The one rule: nothing here decides anything about the log. Letters of consensus go to the replica;
the rest is about the group around it: who is wanted in it, who should lead, whether all have the
same state, and requests that one member carries to another.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from shardnode.raft.messages import TimeoutNow
from shardnode.shard.comparing import Comparing
from shardnode.shard.control import Wish
from shardnode.shard.lanes import Incoming, Lanes
from shardnode.shard.letters import Carry, Check, Hello, Letter, Trims
from shardnode.shard.peers import Peers
from shardnode.shard.retention import Trim
from shardnode.shard.settings import WorkerSettings
from shardnode.shard.steward import Steward
from shardnode.wire.frames import Frame
from shardnode.wire.placement import split_member_id

if TYPE_CHECKING:
    from shardnode.shard.effects import Effects
    from shardnode.shard.replica import Replica
    from shardnode.shard.service import Service


class Company:
    """As one worker keeps it, from its first letter to its last."""

    def __init__(self, settings: WorkerSettings, lanes: Lanes) -> None:
        self.wish = Wish(settings.nodes_version, dict(settings.nodes))
        """The nodes that are wanted, as the supervisor last said."""
        self._settings = settings
        self._lanes = lanes
        self._routers = dict(settings.nodes)
        self._replica: Replica | None = None
        self._steward: Steward | None = None
        self._comparing = Comparing(settings.cluster_id, settings.member)
        self._peers = Peers(
            lanes.context,
            lanes.poller,
            settings.peer_listen,
            shard=settings.shard,
            cluster=settings.cluster_id,
        )
        self._peers.use(settings.peers(self.wish.members))
        self.counters = self._peers.counters

    def introduce(self, replica: Replica) -> None:
        """The replica is open: from now on letters are for it."""
        self._replica = replica
        self._steward = Steward(replica, self._settings.shard)

    # -- letters ------------------------------------------------------------------------------

    def send(self, letters: Iterable[Letter]) -> None:
        """Let letters leave; what cannot leave now is dropped and counted."""
        self._peers.send(letters)

    def drain(self, signalled: Container[object]) -> list[Letter]:
        """Everything that waits, if a poll named our socket."""
        return self._peers.drain(signalled)

    def take(self, letters: Sequence[Letter], service: Service) -> list[Incoming]:
        """Do what letters ask for. Returns the requests that others carried here."""
        replica = service.replica
        carried = []
        for letter in letters:
            if isinstance(letter, Hello):
                self._answer(letter, replica)
            elif isinstance(letter, Check):
                self._comparing.heard(letter, replica.raft.membership)
            elif isinstance(letter, Carry):
                carried += self._take_carried(letter, service)
            elif isinstance(letter, Trims):
                service.take_trims(letter)
            else:
                if isinstance(letter, TimeoutNow) and self._steward is not None:
                    self._steward.handed(letter.term)
                replica.receive(letter)
        return carried

    def _answer(self, hello: Hello, replica: Replica) -> None:
        """A member that boots for the first time wants to know whether the group is new."""
        if hello.asks:
            has_data = replica.raft.term > 0 or replica.log.last_index > 0
            me = self._settings.member
            self.send([Hello(hello.cluster, me, hello.source, has_data, asks=False)])

    # -- the group ----------------------------------------------------------------------------

    def tend(self, now_ms: int) -> None:
        """What a leader owes its group."""
        if self._steward is not None:
            self._steward.tend(self.wish, now_ms)

    def hand_over(self) -> bool:
        """Let another member lead, if one can; whether it was asked to."""
        return self._steward is not None and self._steward.retire()

    @property
    def is_out(self) -> bool:
        """Whether this node is not wanted any more, and no leader talks to it."""
        replica, wish = self._replica, self.wish
        if replica is None or not wish.version or self._settings.node in wish.members:
            return False
        return not replica.raft.leader

    def use_members(self, version: int, members: Mapping[str, str]) -> None:
        """Other nodes are wanted. One that is not any more keeps its connection while it is in
        the group: it has to hear that it leaves."""
        if version < self.wish.version:
            return
        nodes = {int(node): router for node, router in members.items()}
        self.wish = Wish(version, nodes)
        self._routers |= nodes
        self._peers.use(self._settings.peers({**self._parting(), **nodes}))

    def _parting(self) -> dict[int, str]:
        if self._replica is None:
            return {}
        group = {split_member_id(each)[1] for each in self._replica.raft.membership.everyone}
        return {node: self._routers[node] for node in group & self._routers.keys()}

    def compare(self, effects: Effects) -> str:
        """Tell the others what our state hashes to, and look at what they have told. Returns why
        this replica must not go on; empty when all is well."""
        replica = self._replica
        if replica is None or not (effects.checks or self._comparing.news):
            return ""
        checks, effects.checks = effects.checks, []
        membership = replica.raft.membership
        for index, digest in checks:
            self.send(self._comparing.own(index, digest, membership))
        verdict = self._comparing.verdict(membership)
        self.counters["state_agreed_index"] = self._comparing.agreed_index
        return verdict

    # -- requests of clients that know one node -----------------------------------------------

    def reply(self, to: Incoming, frames: Sequence[Frame]) -> None:
        """Answer a message, by the way it came."""
        if to.lane is not None:
            self._lanes.send(to, frames)
            return
        source, token = (int.from_bytes(part, "big") for part in to.envelope)
        settings = self._settings
        letter = Carry(settings.cluster_id, settings.member, source, token, True, frames)
        self._peers.post(letter)

    def carry(self, token: int, frames: Sequence[Frame]) -> bool:
        """Send a request to the member that leads; False when there is none to be reached."""
        settings, replica = self._settings, self._replica
        leader = replica.raft.leader if replica is not None else 0
        if leader in (0, settings.member):
            return False
        letter = Carry(settings.cluster_id, settings.member, leader, token, False, frames)
        return self._peers.post(letter)

    def suggest(self, stamp_ms: int, trims: Sequence[Trim]) -> None:
        """Tell the leader where partitions are to begin, of which we are the master."""
        settings, replica = self._settings, self._replica
        leader = replica.raft.leader if replica is not None else 0
        if leader not in (0, settings.member):
            me = settings.member
            self._peers.post(Trims(settings.cluster_id, me, leader, stamp_ms, trims))

    def _take_carried(self, letter: Carry, service: Service) -> list[Incoming]:
        frames = [bytes(frame) for frame in letter.frames]
        if letter.target != self._settings.member:
            self.counters["peer_strangers"] += 1
        elif letter.is_reply:
            service.legacy.answered(letter.token, frames)
        else:
            envelope = (letter.source.to_bytes(8, "big"), letter.token.to_bytes(8, "big"))
            return [Incoming(None, envelope, frames)]
        return []

"""What members do and say, in words that a person enjoys reading.

The one rule: a line shows what matters for safety (indexes, terms, what is durable) and nothing
random. `3/2` is the entry at index 3 of term 2; `@1500.4` is a stamp, the leader's clock and a
counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from shardnode.raft import RAFT_PARTITION, Entry, Membership, Message, Ready, Role, SnapshotRef
from shardnode.raft.leader import STAMP_CLOCK_SHIFT
from shardnode.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    PreVote,
    PreVoteReply,
    SnapshotOffer,
    TimeoutNow,
    Vote,
    VoteReply,
)

if TYPE_CHECKING:
    from tests.raft.host import Host


class Silence:
    """Tells nothing; what most tests want."""

    def standing(self, host: Host, ready: Ready) -> None:
        """A `Ready` was taken."""

    def message(self, message: Message) -> None:
        """A message leaves."""

    def writes(self, host: Host, ready: Ready) -> None:
        """What the `Ready` wants durable is about to be written."""

    def results(self, host: Host, ready: Ready) -> None:
        """Everything the `Ready` asked for is done."""


class Narrator(Silence):
    """Collects one line for each thing that happens."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, member: int, what: str) -> None:
        self.lines.append(f"{member}  {what}")

    def standing(self, host: Host, ready: Ready) -> None:
        if ready.standing is not None:
            role, term, leader = ready.standing.role, ready.standing.term, ready.standing.leader
            if role is Role.LEADER:
                self.say(host.member, f"leads term {term}")
            elif role is Role.FOLLOWER:
                self.say(host.member, f"follows {leader or 'nobody'} in term {term}")
            else:
                self.say(host.member, f"is a {role.name.lower().replace('_', '-')} in term {term}")

    def message(self, message: Message) -> None:
        text = WORDS[type(message)](message)
        self.lines.append(f"{message.source}→{message.target}  {text}")

    def writes(self, host: Host, ready: Ready) -> None:
        if ready.hard_state is not None:
            state = ready.hard_state
            recovering = ", recovering" if state.recovering else ""
            self.say(
                host.member, f"stores term {state.term}, vote {state.vote or 'none'}{recovering}"
            )
        if ready.entries:
            verb = "has no space for" if host.disk_full else "writes"
            self.say(host.member, f"{verb} {entries_in_words(ready.entries)}")

    def results(self, host: Host, ready: Ready) -> None:
        if ready.committed:
            self.say(host.member, f"applies {entries_in_words(ready.committed)}")
        for grant in ready.reads:
            self.say(host.member, f"serves read {grant.context} at {grant.index}")
        for context in ready.refused_reads:
            self.say(host.member, f"refuses read {context}")
        if ready.install is not None:
            what = f"wants {snapshot_in_words(ready.install)} from {ready.install_from}"
            self.say(host.member, what)


def entries_in_words(entries: Iterable[Entry]) -> str:
    return ", ".join(f"{entry.index}/{entry.term} {payload_in_words(entry)}" for entry in entries)


def payload_in_words(entry: Entry) -> str:
    if entry.partition != RAFT_PARTITION:
        return entry.payload.decode()
    if not entry.payload:
        return "no-op"
    return membership_in_words(Membership.decode(entry.payload))


def membership_in_words(membership: Membership) -> str:
    words = f"voters {numbers(membership.voters)}"
    if membership.outgoing:
        words += f" and {numbers(membership.outgoing)}"
    if membership.learners:
        words += f", learners {numbers(membership.learners)}"
    return f"({words})"


def snapshot_in_words(snapshot: SnapshotRef) -> str:
    members = membership_in_words(snapshot.membership)
    return f"snapshot {snapshot.index}/{snapshot.term} {members}"


def numbers(members: Iterable[int]) -> str:
    return " ".join(map(str, members)) or "none"


def stamped(m: Append | AppendReply | Heartbeat | HeartbeatReply | SnapshotOffer) -> str:
    counter = m.stamp & ((1 << STAMP_CLOCK_SHIFT) - 1)
    return f"t{m.term} @{m.stamp >> STAMP_CLOCK_SHIFT}.{counter}"


def _pre_vote(m: PreVote) -> str:
    return f"pre-vote for term {m.term}? log ends at {m.last_index}/{m.last_term}"


def _pre_vote_reply(m: PreVoteReply) -> str:
    verdict = "granted for" if m.granted else "refused in"
    return f"pre-vote {verdict} term {m.term}"


def _vote(m: Vote) -> str:
    forced = ", forced" if m.forced else ""
    return f"vote in term {m.term}? log ends at {m.last_index}/{m.last_term}{forced}"


def _vote_reply(m: VoteReply) -> str:
    return f"vote {'granted' if m.granted else 'refused'} in term {m.term}"


def _append(m: Append) -> str:
    what = entries_in_words(m.entries) or "nothing"
    return f"append {stamped(m)} after {m.prev_index}/{m.prev_term}: {what}; committed {m.commit}"


def _append_reply(m: AppendReply) -> str:
    recovering = ", recovering" if m.recovering else ""
    if m.accepted:
        return f"has all through {m.match} {stamped(m)}{recovering}"
    if not m.rejected:
        return f"is in another term {stamped(m)}{recovering}"
    hint = f"{m.hint_index}/{m.hint_term}"
    return f"does not have {m.rejected} {stamped(m)}, perhaps {hint}{recovering}"


def _heartbeat(m: Heartbeat) -> str:
    recovery = ", as you recover" if m.recovery else ""
    return f"heartbeat {stamped(m)} committed {m.commit}, log ends at {m.last_index}{recovery}"


def _heartbeat_reply(m: HeartbeatReply) -> str:
    return f"follows {stamped(m)}{', recovering' if m.recovery else ''}"


def _snapshot_offer(m: SnapshotOffer) -> str:
    return f"offer {stamped(m)} {snapshot_in_words(m.snapshot)}"


def _timeout_now(m: TimeoutNow) -> str:
    return f"take over now, t{m.term}"


WORDS: dict[type[Message], Callable[[Any], str]] = {
    PreVote: _pre_vote,
    PreVoteReply: _pre_vote_reply,
    Vote: _vote,
    VoteReply: _vote_reply,
    Append: _append,
    AppendReply: _append_reply,
    Heartbeat: _heartbeat,
    HeartbeatReply: _heartbeat_reply,
    SnapshotOffer: _snapshot_offer,
    TimeoutNow: _timeout_now,
}

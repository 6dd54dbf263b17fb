"""A member that leads: replication, commitment, reads, leases, transfer.

The one rule: only an entry of the leader's own term is committed by counting, and never beyond
what the leader itself has made durable (paper, 5.4.2). Messages are built when the caller asks
for a `Ready`, so everything that came in since the last one travels together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from shardnode.raft import follower, quorum
from shardnode.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    Message,
    PreVote,
    SnapshotOffer,
    TimeoutNow,
    Vote,
)
from shardnode.raft.progress import Mode, Progress
from shardnode.raft.types import Entry

if TYPE_CHECKING:
    from shardnode.raft.core import Raft

STAMP_CLOCK_SHIFT = 20
"""A stamp is the clock in its upper bits and a counter below: an echo tells when it was sent."""


def tick(raft: Raft) -> None:
    """Check that a quorum still follows, then heartbeats, resends, and the transfer's deadline."""
    if not quorum_in_contact(raft):
        raft.count("quorum_lost")
        _abdicate(raft)
        return
    if raft.transfer_target and raft.now_ms >= raft.transfer_deadline_ms:
        raft.transfer_target = 0
    if raft.now_ms >= raft.heartbeat_due_ms:
        broadcast_heartbeat(raft)
    for progress in raft.progress.values():
        _notice_silence(raft, progress)


def _abdicate(raft: Raft) -> None:
    """Nobody is heard of; but perhaps somebody hears us, and need not wait until we are silent."""
    matches = {m: p.match for m, p in raft.progress.items() if m in raft.membership.voters}
    if matches:
        heir = max(matches, key=lambda member: (matches[member], member))
        raft.send(TimeoutNow(raft.cluster, raft.member, heir, raft.term))
    raft.become_follower(raft.term, 0)


def quorum_in_contact(raft: Raft) -> bool:
    """Check-quorum: was a majority heard of within one election timeout?"""

    def contact_of(member: int) -> int:
        return raft.now_ms if member == raft.member else raft.progress[member].contact_ms

    heard = quorum.reached(raft.membership.halves, contact_of)
    return raft.now_ms - heard < raft.options.election_timeout_ms


def _notice_silence(raft: Raft, progress: Progress) -> None:
    """The network may have lost an append or an offer: send again after a while."""
    silence = raft.now_ms - progress.progress_ms
    if progress.mode is Mode.SNAPSHOT:
        if silence >= raft.options.snapshot_resend_ms:
            progress.probe(raft.now_ms)
    elif silence >= raft.options.resend_ms:
        if progress.mode is Mode.REPLICATE and progress.inflight:
            progress.probe(raft.now_ms)
        progress.probe_sent = False


def next_stamp(raft: Raft) -> int:
    """Strictly increasing within the term, and never behind the clock (D3)."""
    raft.stamp = max(raft.stamp + 1, raft.now_ms << STAMP_CLOCK_SHIFT)
    return raft.stamp


def broadcast_heartbeat(raft: Raft) -> None:
    """Tell everyone that we lead; one round also covers every read that came in so far."""
    raft.heartbeat_due_ms = raft.now_ms + raft.options.heartbeat_ms
    if raft.reads.wants_round and raft.commit_index >= raft.term_start_index:
        raft.reads.begin_round(next_stamp(raft), raft.commit_index)
    for member, progress in raft.progress.items():
        raft.send(
            Heartbeat(
                cluster=raft.cluster,
                source=raft.member,
                target=member,
                term=raft.term,
                stamp=next_stamp(raft),
                commit=min(raft.advertised_commit, progress.match),
                last_index=raft.log.last_index,
                recovery=progress.recovery,
            )
        )
    _confirm_reads(raft)


def replicate(raft: Raft) -> None:
    """Send each member what it lacks, as far as its window allows."""
    if raft.reads.wants_round and raft.commit_index >= raft.term_start_index:
        broadcast_heartbeat(raft)
    for member, progress in raft.progress.items():
        while progress.may_send(raft.options.inflight_appends_max):
            if progress.mode is Mode.REPLICATE and progress.next > raft.log.last_index:
                break
            if not _send_append(raft, member, progress):
                break


def _send_append(raft: Raft, member: int, progress: Progress) -> bool:
    log, options = raft.log, raft.options
    prev_index = progress.next - 1
    prev_term = log.term(prev_index)
    if prev_term is None:
        _offer_snapshot(raft, member, progress)
        return False
    entries: Sequence[Entry] = ()
    if progress.next <= log.last_index and not _out_of_reach(raft, progress):
        entries = log.read(
            progress.next, log.last_index, options.append_bytes_max, options.append_entries_max
        )
    raft.send(
        Append(
            cluster=raft.cluster,
            source=raft.member,
            target=member,
            term=raft.term,
            stamp=next_stamp(raft),
            prev_index=prev_index,
            prev_term=prev_term,
            commit=raft.advertised_commit,
            entries=tuple(entries),
        )
    )
    progress.sent(prev_index + len(entries), raft.now_ms)
    return True


def _out_of_reach(raft: Raft, progress: Progress) -> bool:
    """A member not heard of for long is probed without entries: they would only pile up."""
    return raft.now_ms - progress.contact_ms >= raft.options.election_timeout_ms


def _offer_snapshot(raft: Raft, member: int, progress: Progress) -> None:
    if _out_of_reach(raft, progress):
        # An old snapshot is of no use, and nobody makes one for a member that may never return.
        progress.probe_sent = True
        return
    snapshot = raft.snapshot
    if snapshot is None or snapshot.index < raft.log.anchor_index:
        # A later probe offers what the caller takes because of this.
        raft.count("no_snapshot")
        raft.snapshot_wanted = True
        progress.probe_sent = True
        return
    progress.await_snapshot(snapshot.index, raft.now_ms)
    raft.send(
        SnapshotOffer(raft.cluster, raft.member, member, raft.term, next_stamp(raft), snapshot)
    )


def on_append_reply(raft: Raft, m: AppendReply) -> None:
    """Advance or step back what we know of a member, then see what that commits."""
    progress = raft.progress.get(m.source)
    if progress is None or max(m.match, m.rejected) > raft.log.last_index:
        raft.count("unexpected")
        return
    _heard(raft, progress, m.stamp)
    if m.accepted:
        if progress.accepted(m.match, raft.now_ms):
            maybe_commit(raft)
            continue_transfer(raft)
        return
    hint, _ = raft.log.last_at_or_below(m.hint_index, m.hint_term)
    if m.recovering:
        progress.restart(min(m.rejected, hint + 1), raft.now_ms)
    elif not progress.refused(m.rejected, hint, raft.now_ms):
        raft.count("stale")


def on_heartbeat_reply(raft: Raft, m: HeartbeatReply) -> None:
    """The member follows us, as of that stamp."""
    progress = raft.progress.get(m.source)
    if progress is None:
        raft.count("unexpected")
        return
    if m.recovery not in (0, progress.recovery):
        # It lost entries and says so for the first time: find out which, also when all is quiet.
        progress.restart(raft.log.last_index + 1, raft.now_ms)
    progress.recovery = m.recovery
    _heard(raft, progress, m.stamp)


def _heard(raft: Raft, progress: Progress, stamp: int) -> None:
    progress.contact_ms = raft.now_ms
    if stamp > progress.acked_stamp:
        progress.acked_stamp = stamp
        _confirm_reads(raft)


def _confirm_reads(raft: Raft) -> None:
    if len(raft.reads):
        raft.reads.confirm(_quorum_stamp(raft))


def _quorum_stamp(raft: Raft) -> int:
    """The stamp that a quorum has echoed; we echo our own at once."""

    def stamp_of(member: int) -> int:
        return raft.stamp if member == raft.member else raft.progress[member].acked_stamp

    return quorum.reached(raft.membership.halves, stamp_of)


def lease_valid(raft: Raft) -> bool:
    """Whether no other leader can exist yet, by the clocks of a quorum.

    A member that echoed a stamp grants no vote for one election timeout from then, and it was
    sent before. A transfer breaks that promise by design, so it voids the lease for the term.
    """
    if raft.lease_void:
        return False

    def time_of(member: int) -> int:
        if member == raft.member:
            return raft.now_ms
        return raft.progress[member].acked_stamp >> STAMP_CLOCK_SHIFT

    since = quorum.reached(raft.membership.halves, time_of)
    options = raft.options
    length = options.election_timeout_ms * (100 - options.lease_margin_percent) // 100
    return raft.now_ms < since + length


def maybe_commit(raft: Raft) -> None:
    """Paper, 5.4.2: commit what a quorum holds, if it is of this term."""

    def match_of(member: int) -> int:
        return raft.log.stable if member == raft.member else raft.progress[member].match

    index = min(quorum.reached(raft.membership.halves, match_of), raft.log.stable)
    if index > raft.commit_index and raft.log.term(index) == raft.term:
        raft.commit_to(index)
        _continue_change(raft)


def _continue_change(raft: Raft) -> None:
    """A committed joint configuration is left at once; a leader voted out steps down."""
    if raft.history.index > raft.commit_index:
        return
    if raft.membership.joint:
        raft.append_membership(raft.membership.settled())
    elif not raft.membership.votes(raft.member):
        raft.become_follower(raft.term, 0)


def continue_transfer(raft: Raft) -> None:
    """Hand over as soon as the target holds the whole log."""
    target = raft.transfer_target
    if target and raft.progress[target].match == raft.log.last_index:
        raft.lease_void = True
        raft.send(TimeoutNow(raft.cluster, raft.member, target, raft.term))


HANDLERS: dict[type[Message], Callable[[Raft, Any], None]] = {
    AppendReply: on_append_reply,
    HeartbeatReply: on_heartbeat_reply,
    Vote: follower.on_vote,
    PreVote: follower.on_pre_vote,
}

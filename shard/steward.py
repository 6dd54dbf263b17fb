"""What a leader does for its group: the members that are wanted, and who should lead.

The one rule: one careful step at a time, each decided from what is there now. A leader that dies
in the middle of a change is followed by one that looks again and takes the next step.

    what it finds                                      the step
    -------------------------------------------------  --------------------------------------------
    a wanted node that is not in the group             it becomes a learner
    a wanted learner that has caught up                it becomes a voter, by joint consensus
    a member that is not wanted                        it leaves, by joint consensus
    … and that is this leader                          another voter takes over first
    another node should lead, and could for a while    leadership is handed to it

Leaders belong to the voters in turn: shard 0 to the lowest node, shard 1 to the next, and so on.
Who was handed the lead by hand keeps it until the next election, or a new version of the wish.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from shardnode.raft import Membership, Raft, Refused, Role
from shardnode.raft.progress import Mode
from shardnode.shard.control import Wish
from shardnode.shard.replica import FETCH_PATIENCE_MS, Replica
from shardnode.wire.placement import member_id

LOOK_EVERY_MS = 200

PROMOTE_LAG_ENTRIES = 1_000
"""A learner this close to the end of the log gets the rest within a moment."""

HAND_OVER_LAG_ENTRIES = 200
STEADY_MS = 5_000
"""How long a node must be fit to lead before it is handed what it should lead."""

AGAIN_MS = 10_000
"""Between two attempts to hand over."""


class Step(NamedTuple):
    """The next configuration."""

    voters: Collection[int]
    learners: Collection[int]


class Steward:
    """One replica's, at work while it leads."""

    def __init__(self, replica: Replica, shard: int) -> None:
        self._replica = replica
        self._shard = shard
        self._look_at_ms = 0
        self._fit_since_ms: int | None = None
        self._not_before_ms = 0
        self._keeps_term = 0
        self._version = 0

    def handed(self, term: int) -> None:
        """Somebody wants this replica to lead: what it leads in the next term, it keeps."""
        self._keeps_term = term + 1

    def tend(self, wish: Wish, now_ms: int) -> None:
        """Look, and take a step if one is due."""
        if now_ms < self._look_at_ms:
            return
        self._look_at_ms = now_ms + LOOK_EVERY_MS
        raft = self._replica.raft
        if wish.version != self._version:
            self._version, self._keeps_term = wish.version, 0
        if raft.role is not Role.LEADER or raft.transfer_target or not wish.version:
            return
        wanted = [member_id(self._shard, node) for node in wish.members]
        try:
            step = next_step(raft.membership, wanted, self._caught_up(PROMOTE_LAG_ENTRIES))
            if step is None:
                self._hand_over(wanted, now_ms)
            elif raft.member not in (*step.voters, *step.learners) and self._leave(step, now_ms):
                return
            else:
                self._keeps_term = 0
                self._replica.change_config(step.voters, step.learners)
        except Refused:
            return  # a change is under way, or we do not lead any more: the next look decides

    def retire(self) -> bool:
        """This replica is about to stop: ask another one to lead; False when none can."""
        raft = self._replica.raft
        fit = sorted(self._caught_up(PROMOTE_LAG_ENTRIES) & set(raft.membership.voters))
        if not fit:
            return False
        try:
            self._replica.transfer(fit[self._shard % len(fit)])
        except Refused:
            return False
        return True

    def _caught_up(self, lag_max: int) -> set[int]:
        """The members that are in touch and nearly have the whole log."""
        raft = self._replica.raft
        return {
            member
            for member, progress in raft.progress.items()
            if progress.mode is Mode.REPLICATE
            and raft.log.last_index - progress.match <= lag_max
            and raft.now_ms - progress.contact_ms < raft.options.election_timeout_ms
            and not progress.recovery
        }

    def _somebody_fetches(self) -> bool:
        """A member is fetching our snapshot: another leader would offer another one."""
        return self._replica.raft.is_fetched_from(FETCH_PATIENCE_MS)

    def _leave(self, step: Step, now_ms: int) -> bool:
        """Whether the lead goes to one that stays, before this member goes."""
        fit = sorted(self._caught_up(HAND_OVER_LAG_ENTRIES) & set(step.voters))
        if not fit or now_ms < self._not_before_ms:
            return False
        self._not_before_ms = now_ms + AGAIN_MS
        self._replica.transfer(fit[self._shard % len(fit)])
        return True

    def _hand_over(self, wanted: Collection[int], now_ms: int) -> None:
        raft = self._replica.raft
        heir = should_lead(raft, self._shard, wanted)
        fit = (
            heir != raft.member
            and raft.term != self._keeps_term
            and heir in self._caught_up(HAND_OVER_LAG_ENTRIES)
            and not self._somebody_fetches()
        )
        if not fit:
            self._fit_since_ms = None
        elif self._fit_since_ms is None:
            self._fit_since_ms = now_ms
        elif now_ms >= max(self._fit_since_ms + STEADY_MS, self._not_before_ms):
            self._not_before_ms = now_ms + AGAIN_MS
            self._fit_since_ms = None
            self._replica.transfer(heir)


def next_step(now: Membership, wanted: Collection[int], caught_up: Collection[int]) -> Step | None:
    """The next configuration on the way to the wanted members; None when nothing can be done."""
    if now.joint:
        return None
    voters, learners = set(now.voters), set(now.learners)
    missing = set(wanted) - voters - learners
    if missing:
        return Step(voters, learners | missing)
    ready = learners & set(wanted) & set(caught_up)
    if ready:
        return Step(voters | ready, learners - ready)
    stay = voters & set(wanted)
    if stay and (voters | learners) - set(wanted):
        return Step(stay, learners & set(wanted))
    return None


def should_lead(raft: Raft, shard: int, wanted: Collection[int]) -> int:
    """The member to which this group's lead belongs."""
    turns = [member for member in raft.membership.voters if member in wanted]
    return turns[shard % len(turns)] if turns else raft.member

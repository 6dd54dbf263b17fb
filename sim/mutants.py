"""Known bugs, put into the production code one at a time: the simulator must find each of them.

A simulator that never fails proves nothing. Each mutant is a mistake that somebody made in a real
system, as an edit of one place in the source. `sim/kept_seeds.py` has the seed that finds each, and
`tests/sim/test_mutants.py` holds us to it.

The one rule: an edit finds its place exactly once. When the source there is changed, the edit is
corrected in the same commit.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake: in `module`, `before` is replaced by `after`."""

    name: str
    module: str
    before: str
    after: str
    favour: tuple[str, ...] = ()
    """The trouble that brings it to light, for those that need a rare combination."""


MUTANTS = (
    # What must be on disk before anybody hears of it.
    Mutant(
        "vote not fsynced",
        "storage.superblock",
        "                file.pwritev([data], 0)\n                file.datasync()\n",
        "                file.pwritev([data], 0)\n",
    ),
    Mutant(
        "vote sent before it is stored",
        "raft.core",
        "            messages, replies = [], messages + replies\n",
        "            messages, replies = messages + replies, []\n",
    ),
    Mutant(
        "acknowledged before the fsync",
        "shard.replica",
        "            self._send(ready.messages)\n            if self._persist(ready):\n"
        "                self._send(ready.after_persist)\n",
        "            self._send(ready.messages)\n            self._send(ready.after_persist)\n"
        "            self._persist(ready)\n",
    ),
    Mutant(
        "log not fsynced",
        "storage.log",
        "                self._file.datasync()\n            except StorageError as error:\n"
        "                self._failed = error\n                raise\n"
        "            self._durable_end =",
        "                pass\n            except StorageError as error:\n"
        "                self._failed = error\n                raise\n"
        "            self._durable_end =",
    ),
    Mutant(
        "new segment's name not fsynced",
        "storage.segment",
        "        files.rename(temporary, path)\n        files.sync_dir(directory)\n",
        "        files.rename(temporary, path)\n",
    ),
    Mutant(
        "segment written over before its old name is gone",
        "storage.spares",
        "        self._files.rename(path, spare)\n        self._files.sync_dir(self._directory)\n",
        "        self._files.rename(path, spare)\n",
    ),
    Mutant(
        "segment renamed before its new header is durable",
        "storage.segment",
        "        file.pwritev([encode_segment_header(header)], 0)\n        file.datasync()\n",
        "        file.pwritev([encode_segment_header(header)], 0)\n",
    ),
    Mutant(
        "batches of an earlier life believed",
        "storage.log",
        "            sealed.header.sequence + 1, self._files.token(), self._timeline.last",
        "            sealed.header.sequence + 1, 1, self._timeline.last",
    ),
    Mutant(
        "failed fsync taken for done",
        "storage.log",
        "            except StorageError as error:\n                self._failed = error\n"
        "                raise\n            self._durable_end =",
        "            except StorageError:\n                pass\n            self._durable_end =",
    ),
    # Elections and commitment.
    Mutant(
        "entry of an older term committed by counting",
        "raft.leader",
        "if index > raft.commit_index and raft.log.term(index) == raft.term:",
        "if index > raft.commit_index:",
    ),
    Mutant(
        "vote for a log that is behind",
        "raft.log",
        "        return (last_term, last_index) >= (self.last_term, self.last_index)\n",
        "        return True\n",
    ),
    Mutant(
        "two votes in one term",
        "raft.follower",
        "    free = raft.vote == m.source or (raft.vote == 0 and raft.leader == 0)\n",
        "    free = raft.leader == 0\n",
    ),
    Mutant(
        "joint consensus asks one half only",
        "raft.quorum",
        "    values = [_half_reached(half, value_of) for half in halves if half]\n",
        "    values = [_half_reached(half, value_of) for half in halves[:1] if half]\n",
        favour=("reconfigure", "split"),
    ),
    Mutant(
        "conflicting entries kept",
        "raft.log",
        "            if not self.matches(entry.index, entry.term):\n",
        "            if entry.index > self.last_index:\n",
    ),
    Mutant(
        "follower commits what it has not compared",
        "raft.follower",
        "    raft.commit_to(min(m.commit, match))\n",
        "    raft.commit_to(min(m.commit, raft.log.last_index))\n",
    ),
    Mutant(
        "commit advertised before it is applied",
        "raft.member",
        "        return min(self.commit_index, self.applied_index)\n",
        "        return self.commit_index\n",
    ),
    # Reads.
    Mutant(
        "read served without a round",
        "raft.core",
        "            self.reads.ask(context)\n",
        "            self.reads.grant(context, self.commit_index)\n",
        favour=("isolate", "pause"),
    ),
    Mutant(
        "stale read after a pause",
        "raft.core",
        "        self.now_ms = max(self.now_ms, now_ms)\n",
        "        self.now_ms = min(self.now_ms + 20, max(self.now_ms, now_ms))\n",
    ),
    Mutant(
        "read before the leader's first commit",
        "raft.member",
        "        self.term_start_index = self.log.last_index + 1\n",
        "        self.term_start_index = 0\n",
        favour=("transfer", "crash", "isolate"),
    ),
    Mutant(
        "vote while a leader holds a lease",
        "raft.follower",
        "        raft.no_vote_until_ms = raft.now_ms + raft.options.election_timeout_ms\n",
        "",
    ),
    Mutant(
        "lease kept while handing over",
        "raft.leader",
        "        raft.lease_void = True\n",
        "",
    ),
    # Restarts.
    Mutant(
        "commit restored from the end of the log",
        "storage.recovery",
        "    commit = min(max(known), log.last_index)\n",
        "    commit = log.last_index\n",
    ),
    Mutant(
        "torn tail kept",
        "storage.replay",
        "                    check_body(bad, batch.body)\n",
        "",
    ),
    Mutant(
        "damage taken for a torn tail",
        "storage.mend",
        "    if stop is not None and stop.proven and not salvage:\n",
        "    if False:\n",
    ),
    Mutant(
        "member that lost data votes",
        "storage.recovery",
        "    superblock.store(replace(state, recovering=True))\n",
        "",
    ),
    Mutant(
        "watermark of a lost log believed",
        "shard.boot",
        "    commit = recovered.commit if state.recovering else "
        "max(recovered.commit, machine.applied_index)\n",
        "    commit = min(max(recovered.commit, machine.applied_index), log.last_index)\n",
        favour=("flip_bit", "isolate"),
    ),
    Mutant(
        "member whole again too early",
        "raft.member",
        "            if held >= target:\n",
        "            if held >= 0:\n",
    ),
    # Snapshots and compaction.
    Mutant(
        "hash chain broken at a snapshot",
        "shard.copies",
        "        replica.log.reset(Anchor(meta.index, meta.term, meta.chain))\n",
        "        replica.log.reset(Anchor(meta.index, meta.term, 0))\n",
    ),
    Mutant(
        "received snapshot not verified",
        "storage.receiver",
        "                check_file(self._files, join(self._path, file.name), file)\n",
        "                pass\n",
        favour=("flip_snapshot", "isolate"),
    ),
    Mutant(
        "configuration forgotten in a snapshot",
        "raft.core",
        "        self.history.reset(snapshot.index, snapshot.membership)\n",
        "        self.history.reset(snapshot.index, self.membership)\n",
        favour=("reconfigure", "isolate"),
    ),
    # Once and only once.
    Mutant(
        "retry applied twice",
        "shard.sessions",
        "        if sequence in session.replies:\n            return Verdict.REPEAT\n",
        "",
    ),
    Mutant(
        "sessions forgotten in a snapshot",
        "shard.sessions",
        "        rows, ended = msgpack.unpackb(data)\n",
        "        rows, ended = [(*row[:3], []) for row in msgpack.unpackb(data)[0]], []\n",
    ),
    Mutant(
        "ended session opened again",
        "shard.sessions",
        "        if client in self._ended:\n            return False\n",
        "",
        favour=("expire_sessions",),
    ),
    Mutant(
        "lost proposal reported as applied",
        "shard.replica",
        "                    fate = Fate.APPLIED if term == entry.term else Fate.LOST\n",
        "                    fate = Fate.APPLIED\n",
    ),
    Mutant(
        "stranger listened to",
        "raft.core",
        "            message.cluster != self.cluster\n            or message.target",
        "            message.target",
    ),
)

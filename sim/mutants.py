"""Known bugs, put into the production code one at a time: the simulator must find each of them.

A simulator that never fails proves nothing. Each mutant is a mistake that somebody made in a real
system, as an edit of one place in the source. `scripts/mutants` prints the list with the seed
that found each; `tests/sim/test_mutants.py` holds us to it.

The one rule: a mutant counts as caught only when a promise breaks. One that cannot even be run
(a name that is gone, a wrong type) is an error of this list.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType


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


def edit(source: str, mutant: Mutant) -> str:
    """The source with the mistake in it."""
    found = source.count(mutant.before)
    if found != 1:
        raise LookupError(
            f"the mutant {mutant.name!r} should find its place once in {mutant.module}, "
            f"found it {found} times: edit the list in sim/mutants.py"
        )
    return source.replace(mutant.before, mutant.after)


class _Loader(SourceFileLoader):
    """Compiles a module from its edited source; no cache of compiled code is read or written."""

    mutant: Mutant

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = importlib.util.decode_source(self.get_data(path))
        edited = edit(source, self.mutant)
        code: CodeType = self.source_to_code(edited.encode(), path)
        return code


class _Finder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._name = f"shardnode.{mutant.module}"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert isinstance(spec.loader, SourceFileLoader)
        loader = _Loader(fullname, spec.loader.path)
        loader.mutant = self._mutant
        spec.loader = loader
        return spec


def infect(mutant: Mutant) -> None:
    """From here on this process runs with the mistake; for a process made for that alone."""
    for name in [name for name in sys.modules if name.startswith("shardnode.")]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder(mutant))


def hunt(mutant: Mutant, seeds: range) -> tuple[int, str] | None:
    """The first seed that finds the mistake, and what broke. None: no seed did."""
    infect(mutant)
    runner = importlib.import_module("shardnode.sim.runner")
    plan = runner.Plan(favour=mutant.favour)
    for seed in seeds:
        try:
            runner.run_seed(seed, plan)
        except (ImportError, LookupError, NameError, TypeError, AttributeError):
            raise
        except Exception as error:
            lines = str(error).splitlines() or [""]
            return seed, f"{type(error).__name__}: {lines[0]}"
    return None


@dataclass(frozen=True, slots=True)
class Catch:
    """What became of one mutant; `seed` is None when it lived."""

    mutant: Mutant
    seed: int | None
    broken: str


def catch_all(seeds: int, jobs: int) -> Iterator[Catch]:
    """Hunt them all, in the order of the list."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda mutant: catch(mutant, seeds), MUTANTS)


def catch(mutant: Mutant, seeds: int) -> Catch:
    """Hunt one mutant in a process of its own."""
    command = [sys.executable, "-P", "-m", "shardnode.sim", "--mutant", mutant.name]
    command += ["--seeds", str(seeds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"the mutant {mutant.name!r} cannot be run:\n{done.stderr}")
    seed, _, broken = done.stdout.strip().partition(" ")
    caught = done.returncode == 0
    return Catch(mutant, int(seed) if caught else None, broken if caught else "")

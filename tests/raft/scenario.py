"""The language of the transcripts: one command on a line, and below it what the members did.

The one rule: a scenario runs the same way every time; nothing in it depends on chance or clocks.

    # prose                            kept as it is, like empty lines
    > start 1 2 3 [learners 4]         empty members that know each other
    > join 4 5                         empty members that know nobody yet
    > voters 1 2 3                     for the members that follow:
    > disk 1 terms 1 1 2 [term 3]      a member starts with such a log
    > options inflight_appends_max=2   before any member
    > tick 1 1500                      time passes for one member
    > wait 100                         time passes for everybody, nothing is delivered
    > pass 1500                        the same in small steps, and all is delivered on the way
    > elect 2                          everybody loses patience with the leader, 2 first
    > deliver [1->2]                   what is under way now arrives, one hop
    > settle                           deliver until nobody has anything to say
    > drop [1->2]                      what is under way is lost
    > keep 1->2 / > replay 1->2        set aside what is under way; let it arrive (again)
    > stray 1->2 at 3                  what was set aside arrives at the wrong member
    > stray 1->2 cluster 8             … or comes from another cluster
    > cut 1 3 / > isolate 1 / > heal   from now on
    > propose 1 a b                    one batch
    > read 1 7 8 [lease]               reads that come in together
    > transfer 1 2
    > change 1 voters 1 2 4 [learners 5]
    > crash 2 / > restart 2            only what is durable is kept
    > lose-log 2                       while it is down
    > persist-late 1 / > persisted 1   hold an fsync back; let it complete
    > disk-full 1 / > disk-free 1
    > compact 1 [keep 1] / > install 3
    > show                             where everybody stands
    > quietly COMMAND                  the same, without telling what happened
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardnode.raft import Message, Refused, Role
from tests.raft.kit import Group
from tests.raft.narrator import Narrator, entries_in_words, membership_in_words
from tests.raft.observer import entries_of

Words = list[str]


class Scenario:
    """Runs commands on a group and collects what is told."""

    def __init__(self) -> None:
        self.group = Group()
        self.narrator = Narrator()
        self.group.narrator = self.narrator
        self._kept: dict[tuple[int, int], list[Message]] = {}
        self._counted: dict[int, dict[str, int]] = {}
        self._voters: list[int] = []
        self._commands: dict[str, Callable[[Words], None]] = {
            "start": self._start,
            "join": self._join,
            "voters": self._set_voters,
            "disk": self._disk,
            "options": self._options,
            "tick": self._tick,
            "wait": self._wait,
            "pass": lambda words: self.group.advance(int(words[0])),
            "elect": self._elect,
            "deliver": self._deliver,
            "settle": lambda _: self.group.settle(),
            "drop": self._drop,
            "keep": self._keep,
            "replay": self._replay,
            "stray": self._stray,
            "cut": lambda words: self.group.cut(*map(int, words)),
            "isolate": lambda words: self.group.isolate(*map(int, words)),
            "heal": lambda _: self.group.heal(),
            "propose": self._propose,
            "read": self._read,
            "transfer": self._transfer,
            "change": self._change,
            "crash": lambda words: self.group.crash(*map(int, words)),
            "restart": self._restart,
            "lose-log": self._lose_log,
            "persist-late": self._persist_late,
            "persisted": self._persisted,
            "disk-full": lambda words: self._set_disk(words, full=True),
            "disk-free": lambda words: self._set_disk(words, full=False),
            "compact": self._compact,
            "install": self._install,
            "show": self._show,
        }

    def run(self, command: str) -> list[str]:
        """Run one command; what happened because of it."""
        self.narrator.lines = []
        name, *words = command.split()
        if name == "quietly":
            return self.run(" ".join(words)) and []
        try:
            self._commands[name](words)
        except Refused as refusal:
            self.narrator.lines.append(f"! {type(refusal).__name__}: {refusal}")
        self._tell_counters()
        return self.narrator.lines

    def _tell_counters(self) -> None:
        for member, host in sorted(self.group.hosts.items()):
            counters = dict(host.raft.counters)
            before = self._counted.get(member, {})
            news = [what for what in sorted(counters) if counters[what] > before.get(what, 0)]
            self._counted[member] = counters
            if news:
                self.narrator.say(member, f"counts {', '.join(news)}")

    # -- members ------------------------------------------------------------------------------

    def _start(self, words: Words) -> None:
        sets = sets_of(["voters", *words])
        self.group.start(*sets["voters"], learners=sets.get("learners", ()))

    def _join(self, words: Words) -> None:
        for word in words:
            self.group.add(int(word), voters=())

    def _set_voters(self, words: Words) -> None:
        self._voters = [int(word) for word in words]

    def _disk(self, words: Words) -> None:
        sets = sets_of(words[1:])
        [term] = sets.get("term", [0])
        self.group.add(int(words[0]), voters=self._voters, terms=sets["terms"], term=term)

    def _options(self, words: Words) -> None:
        values = dict(word.split("=") for word in words)
        changes = {name: int(value) for name, value in values.items()}
        self.group.options = replace(self.group.options, **changes)

    def _restart(self, words: Words) -> None:
        self.group.restart(int(words[0]))
        self._counted.pop(int(words[0]), None)

    def _lose_log(self, words: Words) -> None:
        self.group[int(words[0])].lose_log()

    # -- time and network ---------------------------------------------------------------------

    def _tick(self, words: Words) -> None:
        self.group.tick(int(words[0]), int(words[1]))

    def _wait(self, words: Words) -> None:
        for host in self.group.alive():
            host.tick(int(words[0]))

    def _elect(self, words: Words) -> None:
        self.group.elect(int(words[0]))

    def _deliver(self, words: Words) -> None:
        if not self.group.deliver(*link_of(words)):
            self.narrator.lines.append("nothing arrives")

    def _drop(self, words: Words) -> None:
        count = self.group.drop(*link_of(words))
        self.narrator.lines.append(f"{count} lost")

    def _keep(self, words: Words) -> None:
        link = link_of(words)
        self._kept[link] = self.group.under_way(*link)
        self.group.drop(*link)

    def _replay(self, words: Words) -> None:
        source, target = link_of(words)
        self.group[target].receive(*self._kept[source, target])

    def _stray(self, words: Words) -> None:
        source, target = link_of(words)
        messages, number = self._kept[source, target], int(words[2])
        if words[1] == "at":
            self.group[number].receive(*messages)
        else:
            self.group[target].receive(*(replace(m, cluster=number) for m in messages))

    # -- work ---------------------------------------------------------------------------------

    def _propose(self, words: Words) -> None:
        self.group.propose(int(words[0]), *(word.encode() for word in words[1:]))

    def _read(self, words: Words) -> None:
        host = self.group[int(words[0])]
        for context in words[1:]:
            if context != "lease":
                host.read(int(context), lease=words[-1] == "lease")
        host.drain()

    def _transfer(self, words: Words) -> None:
        host = self.group[int(words[0])]
        host.raft.transfer(int(words[1]))
        host.drain()

    def _change(self, words: Words) -> None:
        sets = sets_of(words[1:])
        self.group.change(int(words[0]), sets["voters"], sets.get("learners", ()))

    # -- disks --------------------------------------------------------------------------------

    def _persist_late(self, words: Words) -> None:
        self.group[int(words[0])].persist_late = True

    def _persisted(self, words: Words) -> None:
        self.group[int(words[0])].release()

    def _set_disk(self, words: Words, *, full: bool) -> None:
        self.group[int(words[0])].disk_full = full

    def _compact(self, words: Words) -> None:
        keep = int(words[2]) if words[1:] else 0
        snapshot = self.group[int(words[0])].compact(keep)
        self.narrator.say(int(words[0]), f"has a snapshot of {snapshot.index}/{snapshot.term}")

    def _install(self, words: Words) -> None:
        if not self.group[int(words[0])].install():
            self.narrator.say(int(words[0]), "does not need it any more")

    # -- what stands --------------------------------------------------------------------------

    def _show(self, _: Words) -> None:
        for member, host in sorted(self.group.hosts.items()):
            self.narrator.say(member, self._standing_of(member) if host.alive else "is down")

    def _standing_of(self, member: int) -> str:
        raft = self.group[member].raft
        entries = entries_of(self.group[member], raft.log.anchor_index + 1, raft.log.last_index)
        log = entries_in_words(entries) or "empty"
        if raft.log.anchor_index:
            log = f"after {raft.log.anchor_index}/{raft.log.anchor_term}: {log}"
        role = "learner" if self._is_learner(member) else raft.role.name.lower().replace("_", "-")
        if raft.recovering:
            role = f"recovering {role}"
        members = membership_in_words(raft.membership).strip("()")
        return (
            f"{role} in term {raft.term}, durable {raft.log.stable}, "
            f"committed {raft.commit_index}, {members}; log {log}"
        )

    def _is_learner(self, member: int) -> bool:
        raft = self.group[member].raft
        return raft.role is Role.FOLLOWER and not raft.membership.votes(member)


def sets_of(words: Words) -> dict[str, list[int]]:
    """`voters 1 2 learners 3` as {"voters": [1, 2], "learners": [3]}."""
    sets: dict[str, list[int]] = {}
    name = ""
    for word in words:
        if word.isdigit():
            sets[name].append(int(word))
        else:
            name = word
            sets[name] = []
    return sets


def link_of(words: Words) -> tuple[int, int]:
    """`1->2`; without a word, every link (see `Group.deliver`)."""
    if not words:
        return 0, 0
    source, target = words[0].split("->")
    return int(source), int(target)


def rerun(text: str) -> tuple[str, Group]:
    """Run a transcript; the same text with what happens now, and the group at its end."""
    scenario = Scenario()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(">"):
            lines.append(line)
            lines += [f"  {told}" for told in scenario.run(line.removeprefix(">"))]
        elif not line.startswith("  "):
            lines.append(line)
    return "\n".join(lines) + "\n", scenario.group

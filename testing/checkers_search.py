"""The second judge: is there any order of the operations of a key that explains all answers?

It knows nothing of logs, and takes versions only as names of values. Each key is a register that is
put, read, swapped, compared and deleted; every operation takes effect at one moment between its
begin and its end, and one with an unknown outcome at any moment after its begin, or never. If no
order fits, somebody saw something that no single copy of the data could have shown.

The search goes through the history event by event and keeps every state in which the register may
be (just-in-time linearization: Lowe, "Testing for linearizability", 2017). An operation is given
its moment as late as possible: when it returns, together with whatever must come before it. What
only reads has its moment as soon as it fits. So a key with thousands of operations takes
milliseconds, as long as few of them are under way at once.

The one rule: a finding is a proof; a search that gives up says `undecided`, which is no verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from shardnode.testing.checkers import Finding
from shardnode.testing.history import Operation

BUDGET = 200_000
"""States looked at for one key before the search gives up."""

SHOWN = 12
"""Operations that a finding tells of."""


class State(NamedTuple):
    """One way to explain everything so far."""

    value: bytes | None
    done: frozenset[int]
    """Operations under way that had their moment."""
    spent: frozenset[int]
    """Those with an unknown outcome that had theirs."""


class _Any(Enum):
    """What is known of a value that is not told."""

    ANYTHING = 1
    SOMETHING = 2
    """The key was there."""


ANYTHING, SOMETHING = _Any.ANYTHING, _Any.SOMETHING


class Undecided(Exception):
    """The search took too long."""


def check_by_search(operations: Sequence[Operation], *, budget: int = BUDGET) -> list[Finding]:
    """Everything that no order of operations explains, at most one finding for each key."""
    keys: dict[bytes, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.status != "failed" and (operation.is_write or operation.status == "ok"):
            keys[operation.key].append(operation)
    findings = []
    for key, group in sorted(keys.items()):
        search = _Search(group, budget)
        try:
            stuck = search.run()
        except Undecided:
            findings.append(Finding("undecided", f"{key!r}: no verdict after {budget} states"))
            continue
        if stuck is not None:
            findings.append(Finding("search", search.describe(stuck)))
    return findings


class _Search:
    """One key."""

    def __init__(self, operations: list[Operation], budget: int) -> None:
        self._operations = sorted(operations, key=lambda operation: operation.invoked_ns)
        self._budget = budget
        self._values = {
            version: value
            for operation in operations
            for version, value in told_versions(operation)
        }
        """Of versions: a name for a value that an answer did not tell."""
        self._sights = [self._sight(operation) for operation in self._operations]
        """What the key must have held before each."""
        self._open: set[int] = set()
        """Under way, certain to have their moment before they return."""
        self._maybe: dict[object, list[int]] = {}
        """With an unknown outcome, begun; those together that are as good as each other."""
        self._states: set[State] = {State(None, frozenset(), frozenset())}

    def run(self) -> Operation | None:
        """The operation at which every explanation fails; None if one is left."""
        alike = self._alike()
        events = []
        for number, operation in enumerate(self._operations):
            events.append((float(operation.invoked_ns), 0, number))
            if operation.status != "unknown":
                events.append((operation.ended_ns, 1, number))
        for _, is_end, number in sorted(events):
            if not is_end:
                if self._operations[number].status != "unknown":
                    self._open.add(number)
                elif number in alike:
                    self._maybe.setdefault(alike[number], []).append(number)
                continue
            found = self._returned(number)
            if not found:
                return self._operations[number]
            self._open.discard(number)
            self._states = found
        return None

    def _alike(self) -> dict[int, object]:
        """Of the operations with an unknown outcome, those that could explain anything, and what
        they have in common: all deletes, and all values that nobody ever saw. Such a value explains
        at most that a key was there, or was another."""
        vague = any(
            sight is SOMETHING or operation.status == "conflict"
            for sight, operation in zip(self._sights, self._operations, strict=True)
        )
        found: dict[int, object] = {}
        for number, operation in enumerate(self._operations):
            if operation.status != "unknown":
                continue
            if operation.value in self._sights:
                found[number] = operation.value
            elif vague:
                found[number] = number if operation.kind == "cas" else ANYTHING
        return found

    def _returned(self, number: int) -> set[State]:
        """Every state after the operation has had its moment, and is forgotten."""
        found: set[State] = set()
        waiting = [self._with_reads(state) for state in self._states]
        visited = set(waiting)
        while waiting:
            state = waiting.pop()
            if number in state.done:
                found.add(State(state.value, state.done - {number}, state.spent))
                continue
            for following in self._steps(state):
                if following not in visited:
                    visited.add(following)
                    waiting.append(following)
            self._budget -= 1
            if self._budget < 0:
                raise Undecided
        return _without_the_poorer(found)

    def _steps(self, state: State) -> Iterable[State]:
        for number in self._open - state.done:
            if self._fits(number, state.value):
                value = _after(self._operations[number], state.value)
                yield self._with_reads(State(value, state.done | {number}, state.spent))
        for number in self._next_maybes(state):
            value = _after(self._operations[number], state.value)
            if value != state.value and self._fits(number, state.value):
                after = State(value, state.done, state.spent | {number})
                yield from self._if_seen(after)

    def _next_maybes(self, state: State) -> Iterable[int]:
        """Of those that are alike, the first that is left: it can do what the others can."""
        for group in self._maybe.values():
            for number in group:
                if number not in state.spent:
                    yield number
                    break

    def _if_seen(self, state: State) -> Iterable[State]:
        """What follows when an operation with an unknown outcome has had its moment: the next one
        must depend on it, otherwise it explains nothing and need not have happened."""
        with_reads = self._with_reads(state)
        if with_reads is not state:
            yield with_reads
            return
        for following in self._open - state.done:
            if self._sights[following] is not ANYTHING and self._fits(following, state.value):
                value = _after(self._operations[following], state.value)
                yield self._with_reads(State(value, state.done | {following}, state.spent))
        for following in self._next_maybes(state):
            if self._sights[following] is not ANYTHING and self._fits(following, state.value):
                value = _after(self._operations[following], state.value)
                after = State(value, state.done, state.spent | {following})
                yield from self._if_seen(after)

    def _with_reads(self, state: State) -> State:
        """Whatever only reads and fits now has its moment now: later it is no easier."""
        reads = {
            number
            for number in self._open - state.done
            if _only_reads(self._operations[number]) and self._fits(number, state.value)
        }
        return state._replace(done=state.done | reads) if reads else state

    def _fits(self, number: int, value: bytes | None) -> bool:
        """Whether the operation could have had its answer from a key with this value."""
        operation, sight = self._operations[number], self._sights[number]
        if operation.status == "conflict" and value == operation.expected:
            return False
        if isinstance(sight, _Any):
            return sight is ANYTHING or value is not None
        return value == sight

    def _sight(self, operation: Operation) -> bytes | _Any | None:
        """What the key must have held before it."""
        if operation.kind == "cas" and operation.status != "conflict":
            return operation.expected  # with an unknown outcome: elsewhere it has no effect
        if operation.status == "unknown" or operation.kind == "put":
            return ANYTHING
        if operation.existed is False or operation.seen_version == 0:
            return None
        if operation.seen is not None:
            return operation.seen
        if operation.seen_version is not None:
            return self._values.get(operation.seen_version, SOMETHING)
        if operation.existed:
            return SOMETHING
        return ANYTHING if operation.status == "conflict" else None

    def describe(self, stuck: Operation) -> str:
        """What cannot be explained, and what happened around it."""
        values = sorted({repr(state.value) for state in self._states})
        around = [
            operation
            for operation in self._operations
            if operation.invoked_ns <= stuck.ended_ns and operation is not stuck
        ]
        around.sort(key=lambda operation: operation.ended_ns)
        lines = [f"no order explains {stuck}", f"before it the key held {' or '.join(values)}"]
        return "\n    ".join([*lines, *(str(operation) for operation in around[-SHOWN:])])


def _without_the_poorer(states: set[State]) -> set[State]:
    """A state that has spent fewer of the unknown operations can do all that the other can."""
    groups: dict[tuple[bytes | None, frozenset[int]], list[frozenset[int]]] = defaultdict(list)
    for state in sorted(states, key=lambda each: len(each.spent)):
        kept = groups[state.value, state.done]
        if not any(spent <= state.spent for spent in kept):
            kept.append(state.spent)
    return {State(value, done, spent) for (value, done), kept in groups.items() for spent in kept}


def _only_reads(operation: Operation) -> bool:
    return operation.kind == "get" or operation.status == "conflict" or operation.existed is False


def told_versions(operation: Operation) -> Iterable[tuple[int, bytes]]:
    """(version, value) pairs that an answer tells."""
    if operation.status != "ok":
        return
    if operation.version is not None and operation.value is not None:
        yield operation.version, operation.value
    if operation.seen_version and operation.seen is not None:
        yield operation.seen_version, operation.seen


def _after(operation: Operation, value: bytes | None) -> bytes | None:
    """What the key holds afterwards."""
    if _only_reads(operation):
        return value
    return None if operation.kind == "delete" else operation.value

"""What a consumer has: the partitions it holds, what was fetched of them, what was given out.

One rule: a message is given out only while its partition is held. What is taken away is dropped
with everything fetched of it, and after `valid_until` nothing is given out at all.

Pure: no socket, no clock. A shell starts `new_calls`, cancels `dropped_calls`, waits for any of
`under_way`, calls `absorb` and gives out what `take` returns. Who says what is held is `membership`
for a group, and `selection` without one.

Partitions take turns, batch by batch. Each has one request under way, which its shard parks while
there is nothing new, and not more than about two pages that nobody has asked for yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal

from shardnode.client.calls import Call
from shardnode.client.messages import Batch, Message, to_batches
from shardnode.client.partition_calls import CommitCall, FetchCall, Taken
from shardnode.wire.errors import Compacted, Conflict, Corrupt, InvalidRequest, ShardnodeError
from shardnode.wire.placement import split_namespace

OnLost = Literal["raise", "skip"]

WAIT_S = 10.0
"""How long a shard parks a read; then it says "nothing yet", which proves that it is there."""

PREFETCH_BYTES = 32 << 20
"""What all partitions together may have fetched ahead."""

PAGE_BYTES_MIN, PAGE_BYTES_MAX = 1 << 14, 1 << 20
PAGES_AHEAD = 2


class Held:
    """One partition that is held."""

    __slots__ = (
        *("back", "backlog", "bytes", "call", "committed", "end", "error", "fails"),
        *("namespace", "next", "number", "position", "taken"),
    )

    def __init__(self, namespace: int, offset: int, taken: Taken | None) -> None:
        self.namespace = namespace
        self.number = split_namespace(namespace)[2]
        self.taken = taken
        self.position = offset
        """The next to give out."""
        self.next = offset
        """The next to fetch."""
        self.committed = offset
        """What the group is known to have."""
        self.back = False
        """Whether it was sought back: the next commit may lower the offset."""
        self.end: int | None = None
        """Of the partition, when it was last read."""
        self.backlog: deque[Batch] = deque()
        self.bytes = 0
        self.call: FetchCall | None = None
        self.error: ShardnodeError | None = None
        """To be told before it is read again."""
        self.fails = 0

    def begin_at(self, offset: int) -> FetchCall | None:
        """Forget what was fetched and go on there; the call that is of no use any more."""
        call, self.call = self.call, None
        self.position = self.next = offset
        self.backlog.clear()
        self.bytes, self.end, self.error, self.fails = 0, None, None, 0
        return call


class Consumption:
    """All that one consumer holds."""

    def __init__(self, *, on_lost: OnLost = "raise") -> None:
        self.spaces: dict[int, Held] = {}
        """By namespace."""
        self.valid_until = float("inf")
        """When a member of a group has to think that it was given up."""
        self.trouble: ShardnodeError | None = None
        """What keeps it from holding what it should."""
        self.is_settled = False
        """Whether all is held that shall be held."""
        self.is_hungry = True
        """Whether `new_calls` may have something."""
        self.fenced: set[int] = set()
        """Namespaces that turned out to be somebody else's; `membership` empties it."""
        self._on_lost = on_lost
        self._numbers: dict[int, Held] = {}
        self._turns: deque[Held] = deque()
        """Those with a backlog."""
        self._ready: list[Message] = []
        self._at = 0
        self._ready_of: Held | None = None
        self._dropped: list[Call[object]] = []

    # What is held.

    def hold(self, namespace: int, offset: int, taken: Taken | None) -> None:
        """From now on it is ours."""
        held = Held(namespace, offset, taken)
        self.spaces[namespace] = self._numbers[held.number] = held
        self.is_hungry = True

    def drop(self, namespaces: Iterable[int]) -> None:
        """From now on it is not."""
        for namespace in list(namespaces):
            held = self.spaces.pop(namespace, None)
            if held is None:
                continue
            if self._numbers.get(held.number) is held:
                del self._numbers[held.number]
            self._restart(held, held.position)

    @property
    def assignment(self) -> list[int]:
        """The numbers of the partitions that are held."""
        return sorted(self._numbers)

    def of(self, number: int) -> Held:
        """A partition by its number; raises `InvalidRequest`."""
        held = self._numbers.get(number)
        if held is None:
            raise InvalidRequest(
                f"expected a partition that this consumer holds, found {number}; it holds"
                f" {self.assignment}"
            )
        return held

    def seek(self, number: int, offset: int) -> None:
        """Go on there."""
        held = self.of(number)
        held.back = held.back or offset < max(held.position, held.committed)
        self._restart(held, offset)

    def _restart(self, held: Held, offset: int) -> None:
        self.is_hungry = True
        call = held.begin_at(offset)
        if call is not None:
            self._dropped.append(call)  # type: ignore[arg-type]  # nobody looks at its result
        if held in self._turns:
            self._turns.remove(held)
        if self._ready_of is held:
            self._ready, self._at, self._ready_of = [], 0, None

    # What is fetched.

    def new_calls(self) -> Sequence[FetchCall]:
        """Calls to start."""
        self.is_hungry = False
        count = len(self.spaces)
        share = PREFETCH_BYTES // PAGES_AHEAD // max(1, count)
        page_bytes = min(max(share, PAGE_BYTES_MIN), PAGE_BYTES_MAX)
        new = []
        for held in self.spaces.values():
            if held.call is None and held.error is None and held.bytes < page_bytes:
                # The first page comes at once, empty or not: it says where the partition ends.
                wait_s = 0.0 if held.end is None else WAIT_S
                held.call = FetchCall(
                    held.namespace, held.next, page_bytes=page_bytes, wait_s=wait_s
                )
                new.append(held.call)
        return new

    def dropped_calls(self) -> Sequence[Call[object]]:
        """Calls to cancel."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def under_way(self) -> Sequence[FetchCall]:
        """Calls of which any brings something new."""
        return [held.call for held in self.spaces.values() if held.call is not None]

    def absorb(self) -> None:
        """Take in what has come."""
        for held in self.spaces.values():
            call = held.call
            if call is None or not call.done:
                continue
            held.call = None
            self.is_hungry = True
            try:
                found = call.result()
            except ShardnodeError as error:
                self._failed(held, error)
                continue
            held.fails = 0
            held.end, held.next = found.end, found.next
            if found.batches:
                if not held.backlog:
                    self._turns.append(held)
                held.backlog.extend(to_batches(found))
                held.bytes += sum(map(len, found.batches))

    def _failed(self, held: Held, error: ShardnodeError) -> None:
        if isinstance(error, Compacted) and error.first_available is not None:
            if self._on_lost == "skip":
                held.next = error.first_available
                if not held.backlog and (self._ready_of is not held or not self._has_ready):
                    held.position = held.next
                return
            text = f"partition {held.number} at {held.next}: {error.message}"
            error = Compacted(text, first_available=error.first_available)
        held.fails += 1
        # A read that was parked and came to nothing while nobody polled says nothing about now.
        if not error.retryable or held.fails > 1 or held.end is None:
            held.error = error

    def take_error(self) -> ShardnodeError | None:
        """What is wrong, once; what it is about is tried again afterwards."""
        error, self.trouble = self.trouble, None
        for held in self.spaces.values():
            if error is None and held.error is not None:
                error, held.error, held.fails = held.error, None, 0
                self.is_hungry = True
        return error

    # What is given out.

    def take(self, limit: int, now: float) -> list[Message]:
        """At most so many messages."""
        messages: list[Message] = []
        if now >= self.valid_until:
            return messages
        while len(messages) < limit and self._open_next():
            part = self._ready[self._at : self._at + limit - len(messages)]
            self._at += len(part)
            messages += part
            assert self._ready_of is not None
            self._ready_of.position = part[-1].offset + 1
        return messages

    def pop(self, now: float) -> Message | None:
        """One message."""
        if now >= self.valid_until or not self._open_next():
            return None
        message = self._ready[self._at]
        self._at += 1
        assert self._ready_of is not None
        self._ready_of.position = message.offset + 1
        return message

    def _open_next(self) -> bool:
        """Whether there is a message ready; opens the next batch if need be."""
        while not self._has_ready:
            if not self._turns:
                return False
            held = self._turns.popleft()
            batch = held.backlog.popleft()
            held.bytes -= len(batch.data)
            self.is_hungry = True
            if held.backlog:
                self._turns.append(held)
            try:
                self._ready = list(batch.open(held.number, held.position))
            except Corrupt:
                if self._on_lost == "raise":
                    self._restart(held, held.position)  # it is met again, until somebody seeks
                    raise
                held.position = batch.base + batch.size
                continue
            self._at, self._ready_of = 0, held
        return True

    @property
    def _has_ready(self) -> bool:
        return self._at < len(self._ready)

    @property
    def is_at_end(self) -> bool:
        """Whether all that was there when partitions were last read has been given out."""
        held = self.spaces.values()
        return self.is_settled and all(p.end is not None and p.position >= p.end for p in held)

    # What the group is told.

    def commits(self, what: Message | Iterable[Message] | None) -> list[CommitCall]:
        """Calls that say how far we are: behind these messages, or behind all that were given out.
        Raises `Conflict` for a partition that is not held any more."""
        if what is None:
            offsets = {p.number: p.position for p in self.spaces.values() if _has_news(p)}
        else:
            offsets = {}
            for message in [what] if isinstance(what, Message) else what:
                after = message.offset + 1
                offsets[message.partition] = max(after, offsets.get(message.partition, 0))
        return [self._commit(number, offset) for number, offset in offsets.items()]

    def _commit(self, number: int, offset: int) -> CommitCall:
        held = self._numbers.get(number)
        if held is None or held.taken is None:
            raise Conflict(
                f"partition {number} does not belong to this member of the group any more; who has"
                " it now reads again what was not committed"
            )
        return CommitCall(held.namespace, held.taken, offset, back=held.back)

    def committed(self, call: CommitCall) -> None:
        """A commit came to an end; raises its error."""
        held = self.spaces.get(call.namespace)
        is_same = held is not None and held.taken == call.taken
        try:
            call.result()
        except Conflict:
            if is_same:
                self.fenced.add(call.namespace)
                self.drop([call.namespace])
            raise
        if held is not None and is_same:
            held.committed = call.offset
            held.back = held.back and not call.back


def _has_news(held: Held) -> bool:
    return held.position != held.committed

"""A ZeroMQ connection as a proxy sees it: whole messages, and what may be done to each.

The one rule: the stream stays well-formed. Bytes of a TCP stream cannot be lost or repeated without
breaking all that follows, so faults are done to whole messages after the handshake. Handshakes and
commands (heartbeats) pass untouched.

    greeting 64 bytes | frames; a frame is  flags 1 | length 1 or 8 | body
                                            flags: 1 more follows, 2 long length, 4 command
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

GREETING_BYTES = 64
_MORE, _LONG, _COMMAND = 1, 2, 4


class Unit(NamedTuple):
    """Bytes that belong together."""

    data: bytes
    is_message: bool
    """A whole message. Otherwise a greeting or a command, which no fault touches."""


class Cutter:
    """Cuts one direction of a connection into units."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._greeting = GREETING_BYTES
        """Bytes still to come of it. Both sides send it in parts and wait for the other's."""
        self._scanned = 0
        """Whole frames of an unfinished message end here in the buffer."""

    def feed(self, data: bytes) -> list[Unit]:
        """The units that are complete now."""
        self._buffer += data
        return list(self._units())

    def _units(self) -> Iterator[Unit]:
        buffer = self._buffer
        if self._greeting and buffer:
            part = min(self._greeting, len(buffer))
            self._greeting -= part
            yield self._take(part, is_message=False)
        if self._greeting:
            return
        while (frame := _frame_at(buffer, self._scanned)) is not None:
            flags, end = frame
            if flags & _COMMAND:
                yield self._take(end, is_message=False)
            elif flags & _MORE:
                self._scanned = end
            else:
                yield self._take(end, is_message=True)

    def _take(self, end: int, *, is_message: bool) -> Unit:
        data = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._scanned = 0
        return Unit(data, is_message)


def _frame_at(buffer: bytearray, start: int) -> tuple[int, int] | None:
    """(flags, end) of the frame that begins at `start`; None until all of it is there."""
    if len(buffer) < start + 2:
        return None
    flags = buffer[start]
    if flags & _LONG:
        if len(buffer) < start + 9:
            return None
        end = start + 9 + int.from_bytes(buffer[start + 1 : start + 9], "big")
    else:
        end = start + 2 + buffer[start + 1]
    return (flags, end) if len(buffer) >= end else None


def bodies(message: bytes) -> Iterator[tuple[int, int]]:
    """(start, end) of the body of each frame of a message."""
    start, buffer = 0, bytearray(message)
    while (frame := _frame_at(buffer, start)) is not None:
        flags, end = frame
        yield start + (9 if flags & _LONG else 2), end
        start = end


def corrupted(message: bytes, random: Random) -> bytes:
    """The same with one to four bits flipped in the longest frame."""
    start, end = max(bodies(message), key=lambda body: body[1] - body[0])
    if start == end:
        return message
    damaged = bytearray(message)
    for _ in range(random.randint(1, 4)):
        damaged[random.randrange(start, end)] ^= 1 << random.randrange(8)
    return bytes(damaged)


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong with one direction of a link. Chances are for each message."""

    cut: bool = False
    """Nothing gets through; what is sent meanwhile arrives after the cut, as TCP would do it."""
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """Later messages overtake it."""
    corrupt: float = 0.0

    @property
    def touches_messages(self) -> bool:
        return bool(self.drop or self.duplicate or self.reorder or self.corrupt)


HEALTHY = Faults()
REORDER_MS = 30.0


def suffered(unit: Unit, faults: Faults, random: Random) -> list[tuple[float, bytes]]:
    """What becomes of a unit: copies, each with how much later than the others it leaves, in ms."""
    if not unit.is_message or not faults.touches_messages:
        return [(0.0, unit.data)]
    if random.random() < faults.drop:
        return []
    data = unit.data
    if random.random() < faults.corrupt:
        data = corrupted(data, random)
    late_ms = random.uniform(1.0, REORDER_MS) if random.random() < faults.reorder else 0.0
    copies = [(late_ms, data)]
    if random.random() < faults.duplicate:
        copies.append((random.uniform(0.0, REORDER_MS), data))
    return copies

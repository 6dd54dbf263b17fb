"""Where the keys of a snapshot lie, and how a task gets at them.

    LocalFile    on this machine: mapped, nothing is copied
    CutFile      on a node: pieces of a cut, a few under way, from wherever an interruption left off
    PartFiles    in a backup: a file, or several that make one

One rule: whatever of it is lost on the way (its process died, its lease ended) is opened again, by
the identity of the snapshot; so what is read is always of the same bytes.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from shardnode.client.cuts import Cut, CutReader
from shardnode.storage.keyfile import Pread
from shardnode.wire import limits
from shardnode.wire.cuts import CutOpen, CutOpened
from shardnode.wire.errors import (
    Corrupt,
    DeadlineExceeded,
    NotFound,
    Overloaded,
    ShardnodeError,
    Unavailable,
)
from shardnode.wire.kinds import Consistency

KEYS_FILE = "keys"
ASK_AGAIN_S = 0.2
PIN_MS = limits.cut_lease_ms_max
"""A frame that nobody reads for so long may lose its cut."""

LOST = (NotFound, Unavailable, DeadlineExceeded, Overloaded)
"""Asking again may do better."""


@dataclass(frozen=True, slots=True)
class Pin:
    """What holds a snapshot on a node."""

    shard: int
    node: int
    cut: int
    snapshot: int
    """Its id: the same bytes, whatever cut they are read by."""

    def as_cut(self) -> Cut:
        """As much of the cut as is needed to use it."""
        numbers = (self.cut, self.node, 0, 0, 0, self.snapshot, 0, 0, 0, 0, 0, 0, 0, 0)
        return Cut(self.shard, CutOpened(*numbers, note=""))


def hold(reader: CutReader, pin: Pin) -> Cut:
    """Hold the snapshot from now on, by a cut that all share who do; raises `NotFound` when it has
    gone."""
    ask = CutOpen(PIN_MS, snapshot_id=pin.snapshot, consistency=Consistency.STALE)
    try:
        opened = reader.open(pin.shard, ask, pin.node)
    except NotFound as error:
        raise NotFound(
            f"shard {pin.shard}: what this frame reads has been let go ({error.message}), because"
            " nobody read it for the time of its lease, or its process ended; load() again"
        ) from error
    if isinstance(opened, CutOpened):
        raise Unavailable(f"shard {pin.shard}: expected a cut of a snapshot, found none")
    return opened


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file that can be mapped."""

    path: str
    size: int

    @contextmanager
    def opened(self, _begin: int = 0, _end: int = 0) -> Iterator[Pread]:
        """Its bytes, for as long as somebody has them."""
        try:
            fd = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise NotFound(
                f"{self.path}: what this frame reads has been let go: nobody read it for the time"
                " of its lease; load() again"
            ) from error
        try:
            mapped = mmap.mmap(fd, self.size, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        with suppress(OSError):
            mapped.madvise(mmap.MADV_SEQUENTIAL)
        view = memoryview(mapped)
        yield lambda offset, size: view[offset : offset + size]
        # Not closed: record batches may still lie in it, and the last of them lets go of it.


@dataclass(frozen=True, slots=True)
class CutFile:
    """A file of a snapshot on a node."""

    connect: tuple[str, ...]
    pin: Pin
    size: int
    timeout_s: float

    @contextmanager
    def opened(self, begin: int = 0, end: int = 0) -> Iterator[Pread]:
        """Its bytes; those from `begin` to `end` are wanted, in order."""
        window = _Window(self, CutReader(self.connect), begin, end or self.size)
        try:
            yield window.pread
        finally:
            window.close()


class _Window:
    """Pieces of a cut's file, asked for ahead of who reads them in order."""

    def __init__(self, source: CutFile, reader: CutReader, begin: int, end: int) -> None:
        self._source = source
        self._reader = reader
        self._begin, self._end = begin, end
        self._cut = source.pin.as_cut()
        self._pieces: Iterator[bytes] = iter(())
        self._at = -1
        """Where the next piece begins."""
        self._rest = b""
        """What came before it and was not wanted yet."""

    def pread(self, offset: int, size: int) -> bytes:
        """The bytes there; raises `NotFound` when the snapshot has gone."""
        if not self._begin <= offset < offset + size <= self._end:
            return b"".join(self._read(offset, offset + size))
        if offset != self._at - len(self._rest):
            self._at, self._rest = offset, b""
            self._pieces = self._read(offset, self._end)
        parts, missing = [self._rest], size - len(self._rest)
        while missing > 0:
            piece = next(self._pieces)
            self._at += len(piece)
            parts.append(piece)
            missing -= len(piece)
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size] if self._rest else data

    def _read(self, offset: int, end: int) -> Iterator[bytes]:
        """From the offset on, whatever happens to the cut in between."""
        news_at = time.monotonic()
        while offset < end:
            try:
                for piece in self._reader.file(self._cut, KEYS_FILE, end, offset):
                    wanted = piece[: end - offset]
                    if not wanted:
                        raise Corrupt(f"a snapshot's keys end at {offset}, before {end}")
                    offset += len(wanted)
                    news_at = time.monotonic()
                    yield wanted
            except LOST as error:
                self._go_on(error, news_at)

    def _go_on(self, error: ShardnodeError, news_at: float) -> None:
        """Open the snapshot again, as long as there is time."""
        pin, timeout_s = self._source.pin, self._source.timeout_s
        while True:
            if time.monotonic() - news_at > timeout_s:
                raise Unavailable(
                    f"shard {pin.shard} on node {pin.node} gave nothing for {timeout_s:g} s:"
                    f" {error.message}; raise option timeout, or load() again"
                ) from error
            try:
                self._cut = hold(self._reader, pin)
            except (Unavailable, DeadlineExceeded, Overloaded) as again:
                error = again
                time.sleep(ASK_AGAIN_S)
            else:
                return

    def close(self) -> None:
        self._reader.finish()


@dataclass(frozen=True, slots=True)
class PartFiles:
    """A file in parts, all of one size but the last."""

    paths: tuple[str, ...]
    part_bytes: int
    size: int

    @contextmanager
    def opened(self, _begin: int = 0, _end: int = 0) -> Iterator[Pread]:
        """Its bytes."""
        yield self._pread

    def _pread(self, offset: int, size: int) -> bytes:
        found = []
        while size > 0:
            number, at = divmod(offset, self.part_bytes)
            with open(self.paths[number], "rb") as file:
                data = os.pread(file.fileno(), min(size, self.part_bytes - at), at)
            if not data:
                raise Corrupt(f"{self.paths[number]}: expected more bytes than it has")
            found.append(data)
            offset += len(data)
            size -= len(data)
        return b"".join(found)


KeySource = LocalFile | CutFile | PartFiles

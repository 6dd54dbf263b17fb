"""Owns a disk in memory that forgets what was not synced, as real ones do.

Until `datasync`, a write is pending: `crash()` keeps, drops or tears each one, sector by sector,
in any combination, and so it does with changes of size. Until `sync_dir`, a name is pending:
`crash()` keeps or undoes each creation, removal and rename, but a rename as a whole. A name that
stays says nothing about the content, which has its own syncs.

The one rule: everything that happens follows from the calls and the given `random.Random`, so a
seed replays exactly. Costs follow the bytes written, not the size of the file: preallocated
zeros are not stored, and a sync touches only what is pending.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, NamedTuple

from shardnode.storage.errors import DiskFailed, NoSpace, SyncFailed
from shardnode.storage.files import Buffer, parent_of

SECTOR_BYTES = 512

FaultKind = Literal["crash", "enospc", "fsync"]


class SimCrash(BaseException):
    """The machine lost its power. Not an `Exception`: no handler of errors may survive it."""


class _Write(NamedTuple):
    offset: int
    data: bytes


class _Resize(NamedTuple):
    size: int
    grow_only: bool


class _Content:
    """Bytes of which the zeros at the end need not be stored."""

    __slots__ = ("data", "size")

    def __init__(self) -> None:
        self.data = bytearray()
        self.size = 0

    def read(self, size: int, offset: int) -> bytes:
        size = max(0, min(size, self.size - offset))
        found = bytes(self.data[offset : offset + size])
        return found + bytes(size - len(found))

    def write(self, offset: int, data: bytes | memoryview) -> None:
        if len(self.data) < offset:
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset : offset + len(data)] = data
        self.size = max(self.size, offset + len(data))

    def resize(self, change: _Resize) -> None:
        if change.size < self.size and change.grow_only:
            return
        del self.data[change.size :]
        self.size = change.size


class _Inode:
    """A file: what a reader sees, what the disk holds, and the difference as a list."""

    __slots__ = ("durable", "pending", "seen")

    def __init__(self) -> None:
        self.seen = _Content()
        self.durable = _Content()
        self.pending: list[_Write | _Resize] = []

    def write(self, offset: int, data: bytes) -> None:
        self.seen.write(offset, data)
        self.pending.append(_Write(offset, data))

    def resize(self, change: _Resize) -> None:
        self.seen.resize(change)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            if isinstance(change, _Write):
                self.durable.write(*change)
            else:
                self.durable.resize(change)
        self.pending.clear()

    def crash(self, rng: random.Random) -> None:
        """Let chance decide which part of what is pending reaches the disk; forget the rest."""
        # Each crash has its own mood, since half of everything would hardly ever be all or none.
        spared = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for change in self.pending:
            if isinstance(change, _Resize):
                if rng.random() < spared:
                    self.durable.resize(change)
                continue
            offset, data = change
            start = 0
            while start < len(data):
                stop = start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES
                if rng.random() < spared:
                    self.durable.write(offset + start, data[start:stop])
                start = stop
        self.lose_pending()

    def lose_pending(self) -> None:
        """Go back to what the disk holds."""
        self.pending.clear()
        self.seen.data[:] = self.durable.data
        self.seen.size = self.durable.size


class _Directory:
    __slots__ = ("durable", "seen")

    def __init__(self) -> None:
        self.seen: dict[str, _Inode | _Directory] = {}
        self.durable: dict[str, _Inode | _Directory] = {}


_Node = _Inode | _Directory


class _Slot(NamedTuple):
    """A name in a directory, and what it stands for after a change; None removes it."""

    directory: _Directory
    name: str
    node: _Node | None

    def key(self) -> tuple[int, str]:
        return id(self.directory), self.name

    def put(self, entries: dict[str, _Node]) -> None:
        if self.node is None:
            entries.pop(self.name, None)
        else:
            entries[self.name] = self.node


class SimFile:
    """An open file of a `SimFiles`; dead after a crash."""

    __slots__ = ("_disk", "_inode", "_life", "_path")

    def __init__(self, disk: SimFiles, inode: _Inode, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._life = disk.crashes

    def pread(self, size: int, offset: int) -> bytes:
        self._alive()
        return self._inode.seen.read(size, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._alive()
        data = b"".join(buffers)
        fault = self._disk._fault("space")
        room = self._disk._room_for(offset + len(data) - self._inode.seen.size)
        if fault == "enospc" or room < 0:
            kept = self._disk.rng.randrange(len(data) + 1) if fault else max(len(data) + room, 0)
            if kept:
                self._disk.cut_short += 1
                self._inode.write(offset, data[:kept])
                self._disk._touch(self._inode)
            raise NoSpace(f"{self._path}: no space left to write")
        self._inode.write(offset, data)
        self._disk._touch(self._inode)
        self._disk._crash_if(fault)

    pwritev_direct = pwritev

    def datasync(self) -> None:
        self._alive()
        fault = self._disk._fault("sync")
        if fault == "fsync":
            self._inode.lose_pending()
            raise SyncFailed(f"{self._path}: fsync failed")
        if fault != "crash" or self._disk.rng.random() < 0.5:
            self._inode.sync()
        self._disk._crash_if(fault)

    def truncate(self, size: int) -> None:
        self._resize(_Resize(size, grow_only=False))

    def allocate(self, size: int) -> None:
        self._resize(_Resize(size, grow_only=True))

    def size(self) -> int:
        self._alive()
        return self._inode.seen.size

    def close(self) -> None:
        """Closing makes nothing durable, and a dead handle may be closed."""

    def _resize(self, change: _Resize) -> None:
        self._alive()
        grows = change.size > self._inode.seen.size
        fault = self._disk._fault("space" if grows else "other")
        if fault == "enospc" or self._disk._room_for(change.size - self._inode.seen.size) < 0:
            raise NoSpace(f"{self._path}: no space left to allocate")
        self._inode.resize(change)
        self._disk._touch(self._inode)
        self._disk._crash_if(fault)

    def _alive(self) -> None:
        if self._disk.crashes != self._life:
            raise SimCrash(f"{self._path}: this handle was opened before the crash")
        self._disk._powered()


class SimFiles:
    """A tree of files on a simulated disk; the `Files` of the simulator and of crash tests."""

    def __init__(self, rng: random.Random, capacity_bytes: int | None = None) -> None:
        self.rng = rng
        self.capacity_bytes = capacity_bytes
        self.crashes = 0
        self.flips = 0  # bits that were spoilt
        self.cut_short = 0  # writes that ended anywhere, even inside a sector
        self.operations = 0  # that change something: the scale of `fail_after`
        self._root = _Directory()
        self._changes: list[tuple[_Slot, ...]] = []  # of names, not synced yet
        self._dirty: dict[int, _Inode] = {}
        self._planned: tuple[int, FaultKind] | None = None
        self._off = False

    def fail_after(self, operations: int, kind: FaultKind) -> None:
        """Let the n-th changing operation from now on fail, 0 being the next one; once.

        "crash" interrupts it, done or not or in part, and everything fails until `crash()`.
        "enospc" waits for an operation that needs space, "fsync" for one that syncs.
        """
        self._planned = (self.operations + operations, kind)

    def calm(self) -> None:
        """Forget a planned failure that did not happen."""
        self._planned = None

    def crash(self) -> None:
        """Lose the power and come back: what was not synced is at the mercy of chance."""
        for inode in self._dirty.values():
            inode.crash(self.rng)
        self._dirty.clear()
        spared = self.rng.choice((0.0, 0.5, 1.0))
        for change in self._changes:
            if self.rng.random() < spared:
                for slot in change:
                    slot.put(slot.directory.durable)
        self._changes.clear()
        _forget_unsynced(self._root)
        self.crashes += 1
        self._planned = None
        self._off = False

    def flip_bit(self, path: str, offset: int | None = None) -> int:
        """Spoil one bit of a file, here and on the disk. Returns the place."""
        self.flips += 1
        inode = self._file(path)
        if offset is None:
            offset = self.rng.randrange(inode.seen.size)
        bit = 1 << self.rng.randrange(8)
        for content in (inode.seen, inode.durable):
            if offset < content.size:
                content.write(offset, bytes([content.read(1, offset)[0] ^ bit]))
        return offset

    def create(self, path: str) -> SimFile:
        directory, name = self._parent(path)
        if name in directory.seen:
            raise DiskFailed(f"{path}: could not create: it exists")
        fault = self._fault("space")
        self._no_space_if(fault, path)
        inode = _Inode()
        self._change(_Slot(directory, name, inode))
        self._crash_if(fault)
        return SimFile(self, inode, path)

    def open(self, path: str) -> SimFile:
        self._powered()
        return SimFile(self, self._file(path), path)

    def exists(self, path: str) -> bool:
        self._powered()
        return self._find(path) is not None

    def listdir(self, path: str) -> list[str]:
        self._powered()
        return sorted(self._directory(path).seen)

    def mkdir(self, path: str) -> None:
        fault = self._fault("space")
        self._no_space_if(fault, path)
        directory = self._root
        for name in path.split("/"):
            node = directory.seen.get(name)
            if node is None:
                node = _Directory()
                self._change(_Slot(directory, name, node))
            if not isinstance(node, _Directory):
                raise DiskFailed(f"{path}: could not make directory: {name} is a file")
            directory = node
        self._crash_if(fault)

    def rename(self, src: str, dst: str) -> None:
        old, old_name = self._parent(src)
        new, new_name = self._parent(dst)
        node = old.seen.get(old_name)
        if node is None:
            raise DiskFailed(f"{src}: could not rename: no such file")
        if isinstance(node, _Directory) and new_name in new.seen:
            raise DiskFailed(f"{src}: could not rename to {dst}: it exists")
        fault = self._fault("other")
        self._change(_Slot(old, old_name, None), _Slot(new, new_name, node))
        self._crash_if(fault)

    def remove(self, path: str) -> None:
        self._file(path)
        directory, name = self._parent(path)
        fault = self._fault("other")
        self._change(_Slot(directory, name, None))
        self._crash_if(fault)

    def remove_tree(self, path: str) -> None:
        for name in list(self._directory(path).seen):
            below = f"{path}/{name}"
            if isinstance(self._find(below), _Directory):
                self.remove_tree(below)
            else:
                self.remove(below)
        directory, name = self._parent(path)
        fault = self._fault("other")
        self._change(_Slot(directory, name, None))
        self._crash_if(fault)

    def sync_dir(self, path: str) -> None:
        directory = self._directory(path)
        fault = self._fault("sync")
        if fault == "fsync":
            raise SyncFailed(f"{path}: fsync of the directory failed")
        if fault != "crash" or self.rng.random() < 0.5:
            self._sync_names(directory)
        self._crash_if(fault)

    def token(self) -> int:
        return self.rng.getrandbits(64)

    def used_bytes(self) -> int:
        """The sizes of all files that have a name."""
        return _total_size(self._root)

    def _sync_names(self, directory: _Directory) -> None:
        """Make the changes in `directory` durable, and what they depend on: earlier changes of
        the same names, such as the creation of a file that was moved in here."""
        keys: set[tuple[int, str]] = set()
        chosen: list[tuple[_Slot, ...]] = []
        kept: list[tuple[_Slot, ...]] = []
        for change in reversed(self._changes):
            if any(slot.directory is directory or slot.key() in keys for slot in change):
                keys.update(slot.key() for slot in change)
                chosen.append(change)
            else:
                kept.append(change)
        for change in reversed(chosen):
            for slot in change:
                slot.put(slot.directory.durable)
        self._changes = kept[::-1]

    def _change(self, *slots: _Slot) -> None:
        for slot in slots:
            slot.put(slot.directory.seen)
        self._changes.append(slots)

    def _touch(self, inode: _Inode) -> None:
        self._dirty[id(inode)] = inode

    def _fault(self, need: Literal["space", "sync", "other"]) -> FaultKind | None:
        """Count an operation; the failure planned for it, if it is one that can fail so."""
        self._powered()
        self.operations += 1
        if self._planned is None or self.operations <= self._planned[0]:
            return None
        kind = self._planned[1]
        if (kind == "enospc" and need != "space") or (kind == "fsync" and need != "sync"):
            return None
        self._planned = None
        return kind

    def _crash_if(self, fault: FaultKind | None) -> None:
        if fault == "crash":
            self._off = True
            raise SimCrash("the power is gone; call crash() to come back")

    def _no_space_if(self, fault: FaultKind | None, path: str) -> None:
        if fault == "enospc":
            raise NoSpace(f"{path}: no space left to create")

    def _powered(self) -> None:
        if self._off:
            raise SimCrash("the power is gone; call crash() to come back")

    def _room_for(self, growth: int) -> int:
        """What is left after `growth` bytes more, negative when they do not fit."""
        if self.capacity_bytes is None or growth <= 0:
            return 0
        return self.capacity_bytes - self.used_bytes() - growth

    def _parent(self, path: str) -> tuple[_Directory, str]:
        return self._directory(parent_of(path)), path.rpartition("/")[2]

    def _directory(self, path: str) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise DiskFailed(f"{path}: no such directory")
        return node

    def _file(self, path: str) -> _Inode:
        node = self._find(path)
        if not isinstance(node, _Inode):
            raise DiskFailed(f"{path}: no such file")
        return node

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for name in path.split("/") if path else ():
            node = node.seen.get(name) if isinstance(node, _Directory) else None
        return node


def _forget_unsynced(directory: _Directory) -> None:
    directory.seen = dict(directory.durable)
    for node in directory.seen.values():
        if isinstance(node, _Directory):
            _forget_unsynced(node)


def _total_size(directory: _Directory) -> int:
    total = 0
    for node in directory.seen.values():
        total += _total_size(node) if isinstance(node, _Directory) else node.seen.size
    return total

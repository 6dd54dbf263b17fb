"""Owns every call that storage makes to a file system, behind two small protocols.

`RealFiles` is the operating system's; `sim/disk.py` has one that loses, tears and reorders
what was not synced. Paths are relative strings with "/", below a root given once.

The one rule: nothing is durable before the sync that covers it. `datasync` covers a file's
bytes and size, `sync_dir` covers the names in one directory, and neither covers the other.
A failed sync is `SyncFailed` and is never retried: the kernel may have dropped the dirty pages
and would report success the second time.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

from shardnode.storage.errors import DiskFailed, NoSpace, StorageError, SyncFailed

Buffer = bytes | memoryview


class File(Protocol):
    """An open file, read and written by position."""

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all buffers one after another, or raise."""

    def pwritev_direct(self, buffers: Sequence[Buffer], offset: int) -> None:
        """The same for much that hardly anybody reads soon: past the system's cache, where that can
        be. No more durable than other writes."""

    def datasync(self) -> None:
        """Make content and size durable, or raise `SyncFailed`."""

    def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) to exactly `size`."""

    def allocate(self, size: int) -> None:
        """Reserve space so that the file has at least `size` bytes; new ones read as zeros."""

    def size(self) -> int:
        """The current length in bytes."""

    def close(self) -> None:
        """Give the handle back. Closing twice is harmless."""


class Files(Protocol):
    """A tree of files below one root."""

    def create(self, path: str) -> File:
        """A new, empty file; one that exists already is an error."""

    def open(self, path: str) -> File:
        """An existing file, for reading and writing."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents; an existing one is fine."""

    def rename(self, src: str, dst: str) -> None:
        """Atomically give a file or directory another name, replacing a file of that name."""

    def remove(self, path: str) -> None:
        """Remove one file."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all below it; not atomic."""

    def sync_dir(self, path: str) -> None:
        """Make the names in this directory durable, or raise `SyncFailed`."""

    def token(self) -> int:
        """64 random bits."""


def join(directory: str, name: str) -> str:
    """`name` inside `directory`, where "" is the root itself."""
    return f"{directory}/{name}" if directory else name


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]


_IOV_MAX = min(1024, os.sysconf("SC_IOV_MAX")) if "SC_IOV_MAX" in os.sysconf_names else 16


def translate(error: OSError, what: str, path: str) -> StorageError:
    """What the system's refusal means here; not for an fsync."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(f"{path}: no space left to {what}: free some and try again")
    return DiskFailed(f"{path}: could not {what}: {error.strerror or error}")


def sync_failed(error: OSError, path: str) -> SyncFailed:
    """What a refused fsync means."""
    return SyncFailed(
        f"{path}: fsync failed ({error.strerror or error}): what was written since the last one "
        "may be lost, so the process must exit and recover from the disk"
    )


def _datasync(fd: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync alone stops at the drive's cache there
    else:
        os.fdatasync(fd)


_BLOCK_BYTES = 4096
_DIRECT_BYTES_MIN = 1 << 20
"""Less than that is not worth a second opening of the file."""
_PIECE_BYTES = 1 << 20
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)
_scratch = threading.local()


def _pieces(buffers: Sequence[Buffer], sizes: Sequence[int]) -> Iterator[memoryview]:
    """The bytes of all buffers in pieces of these sizes, each in the same place of memory, which
    begins where a page does."""
    memory = getattr(_scratch, "memory", None)
    if memory is None:
        memory = _scratch.memory = memoryview(mmap.mmap(-1, _PIECE_BYTES))
    rest = iter(buffers)
    part = memoryview(b"")
    for size in sizes:
        filled = 0
        while filled < size:
            if not part:
                part = memoryview(next(rest))
            step = min(size - filled, len(part))
            memory[filled : filled + step] = part[:step]
            filled += step
            part = part[step:]
        yield memory[:size]


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def pread(self, size: int, offset: int) -> bytes:
        try:
            data = os.pread(self._fd, size, offset)
            while len(data) < size:  # one call moves at most 2 GiB
                more = os.pread(self._fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise translate(error, "read", self._path) from error
        return data

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        rest = buffers
        try:
            while rest:
                batch = rest[:_IOV_MAX]
                written = os.pwritev(self._fd, batch, offset)
                offset += written
                rest = _unwritten(batch, written, rest)
        except OSError as error:
            raise translate(error, "write", self._path) from error

    def pwritev_direct(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Whole blocks go to the disk from memory of ours: the system's cache would copy them once
        more, into pages that it has to find first, which costs several times as much."""
        total = sum(map(len, buffers))
        direct = self._open_direct() if total >= _DIRECT_BYTES_MIN else -1
        if direct < 0:
            self.pwritev(buffers, offset)
            return
        try:
            sizes = _in_blocks(offset, total)
            for size, piece in zip(sizes, _pieces(buffers, sizes), strict=True):
                try:
                    _write_all(self._fd if size < _BLOCK_BYTES else direct, piece, offset)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    _write_all(self._fd, piece, offset)  # its blocks are of another size
                offset += size
        except OSError as error:
            raise translate(error, "write", self._path) from error
        finally:
            os.close(direct)

    def _open_direct(self) -> int:
        """The file once more, for whole blocks; below 0 where the system or its disk cannot."""
        if not _O_DIRECT:
            return -1
        try:
            return os.open(f"/proc/self/fd/{self._fd}", os.O_WRONLY | _O_DIRECT)
        except OSError:
            return -1

    def datasync(self) -> None:
        try:
            _datasync(self._fd)
        except OSError as error:
            raise sync_failed(error, self._path) from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise translate(error, "truncate", self._path) from error

    def allocate(self, size: int) -> None:
        try:
            if size <= os.fstat(self._fd).st_size:
                return
            if sys.platform == "darwin":
                os.ftruncate(self._fd, size)
            else:
                os.posix_fallocate(self._fd, 0, size)
        except OSError as error:
            raise translate(error, "allocate", self._path) from error

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _in_blocks(offset: int, total: int) -> list[int]:
    """Sizes of pieces: up to where a block begins, then whole blocks, then what is left."""
    lead = -offset % _BLOCK_BYTES
    blocks, rest = divmod(total - lead, _BLOCK_BYTES)
    whole, last = divmod(blocks * _BLOCK_BYTES, _PIECE_BYTES)
    return [size for size in (lead, *[_PIECE_BYTES] * whole, last, rest) if size]


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    """All of it."""
    while data:
        written = os.pwrite(fd, data, offset)
        if not written:
            raise OSError(errno.EIO, "the system wrote nothing")
        data, offset = data[written:], offset + written


def _unwritten(batch: Sequence[Buffer], written: int, rest: Sequence[Buffer]) -> Sequence[Buffer]:
    """What is left of `rest` after its first buffers, `batch`, were written in part or whole."""
    for position, buffer in enumerate(batch):
        if written < len(buffer):
            if written == 0 and position == 0:
                raise OSError(errno.EIO, "the system wrote nothing")
            return [memoryview(buffer)[written:], *rest[position + 1 :]]
        written -= len(buffer)
    return rest[len(batch) :]


class RealFiles:
    """The files of the operating system below `root`, which is made when it is missing."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.fspath(root)
        os.makedirs(self._root, exist_ok=True)

    def create(self, path: str) -> RealFile:
        return self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, "create")

    def open(self, path: str) -> RealFile:
        return self._open(path, os.O_RDWR, "open")

    def exists(self, path: str) -> bool:
        try:
            os.lstat(self._full(path))
        except FileNotFoundError:
            return False
        except OSError as error:  # "cannot look" must not pass for "is not there"
            raise translate(error, "look up", path) from error
        return True

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._full(path)))
        except OSError as error:
            raise translate(error, "list", path) from error

    def mkdir(self, path: str) -> None:
        try:
            os.makedirs(self._full(path), exist_ok=True)
        except OSError as error:
            raise translate(error, "make directory", path) from error

    def rename(self, src: str, dst: str) -> None:
        try:
            os.rename(self._full(src), self._full(dst))
        except OSError as error:
            raise translate(error, f"rename to {dst}", src) from error

    def remove(self, path: str) -> None:
        try:
            os.remove(self._full(path))
        except OSError as error:
            raise translate(error, "remove", path) from error

    def remove_tree(self, path: str) -> None:
        try:
            shutil.rmtree(self._full(path))
        except OSError as error:
            raise translate(error, "remove", path) from error

    def sync_dir(self, path: str) -> None:
        try:
            fd = os.open(self._full(path), os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise sync_failed(error, path or self._root) from error

    def token(self) -> int:
        return int.from_bytes(os.urandom(8), "little")

    def _open(self, path: str, flags: int, what: str) -> RealFile:
        try:
            return RealFile(os.open(self._full(path), flags, 0o644), path)
        except OSError as error:
            raise translate(error, what, path) from error

    def _full(self, path: str) -> str:
        assert not path.startswith("/"), path
        assert ".." not in path.split("/"), path
        return os.path.join(self._root, path) if path else self._root


class ReadOnlyFiles(RealFiles):
    """The same for those who only look: nothing below `root` is made, changed or removed."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.fspath(root)

    def open(self, path: str) -> RealFile:
        return self._open(path, os.O_RDONLY, "open")

    def create(self, path: str) -> RealFile:
        raise self._refused(path)

    def mkdir(self, path: str) -> None:
        raise self._refused(path)

    def rename(self, src: str, dst: str) -> None:  # noqa: ARG002
        raise self._refused(src)

    def remove(self, path: str) -> None:
        raise self._refused(path)

    def remove_tree(self, path: str) -> None:
        raise self._refused(path)

    def _refused(self, path: str) -> AssertionError:
        return AssertionError(f"{path}: these files are only looked at")

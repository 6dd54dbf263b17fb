"""LMDB's errors as ours, and what does not match its checksum.

The one rule: what the caller must do decides which error it is. A full disk is told from one that
fails, and a commit that failed for another reason than space is a failed sync: pages that were
written before may be lost.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import lmdb

from shardnode.storage.engine_store import MapFull
from shardnode.storage.errors import DiskFailed, KeysCorrupt, NoSpace, SyncFailed

_NO_ROOM_BYTES = 64 << 10


@contextmanager
def translated(path: str, *, opening: bool = False, committing: bool = False) -> Iterator[None]:
    """What LMDB raises inside becomes one of our errors."""
    try:
        yield
    except lmdb.MapFullError as error:
        raise MapFull(f"{path}: the map of the key-value files is full: it must grow") from error
    except lmdb.DiskError as error:
        raise _no_space(path) from error
    except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError) as error:
        raise damaged(path, error) from error
    except lmdb.Error as error:
        if opening:
            raise damaged(path, error) from error
        if committing and _was_cut_short(path, error):
            raise _no_space(path) from error
        if committing:
            raise SyncFailed(
                f"{path}: the commit failed ({error}): the process must exit and recover"
            ) from error
        raise DiskFailed(f"{path}: the key-value files cannot be used ({error})") from error


def _no_space(path: str) -> NoSpace:
    return NoSpace(f"{path}: no space left to flush keys: free some and try again")


def _was_cut_short(path: str, error: Exception) -> bool:
    """LMDB calls it an I/O error when the system writes less than it was asked to, which is how
    most disks tell that they are full. No page of an earlier commit is concerned then."""
    about = os.statvfs(path)
    free = about.f_bfree if os.geteuid() == 0 else about.f_bavail
    return os.strerror(errno.EIO) in str(error) and free * about.f_frsize < _NO_ROOM_BYTES


def damaged(path: str, error: Exception) -> KeysCorrupt:
    return _corrupt(path, f"the key-value files cannot be read ({error})")


def unsound(path: str, what: str) -> KeysCorrupt:
    return _corrupt(path, f"{what} does not match its checksum")


def _corrupt(path: str, detail: str) -> KeysCorrupt:
    return KeysCorrupt(
        detail, path=path, advice="repair this member from its peers or from a snapshot"
    )

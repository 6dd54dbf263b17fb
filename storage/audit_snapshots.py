"""The published snapshots of a shard, every byte of them against the manifest.

The one rule: a snapshot is for others. A damaged one costs this shard nothing as long as its own
log and keys are whole, and is never taken for a leftover.
"""

from __future__ import annotations

from shardnode.storage.audit import Book
from shardnode.storage.errors import SnapshotCorrupt, StorageError
from shardnode.storage.files import Files, join
from shardnode.storage.manifest import MANIFEST_BYTES_MAX, MANIFEST_NAME, SnapshotMeta
from shardnode.storage.publish import TEMPORARY
from shardnode.storage.receiver import PARTIAL
from shardnode.storage.snapshots import PUBLISHED, SNAPSHOTS_DIRECTORY
from shardnode.storage.verify import checked_chunks

_MEANS = (
    "this snapshot is of no use: the shard makes or fetches another when one is needed; set it"
    " aside with `shardnode repair`"
)


def audit_snapshots(files: Files, shard: str, book: Book) -> list[SnapshotMeta]:
    """Look at all of them; the sound ones, lowest index first."""
    directory = join(shard, SNAPSHOTS_DIRECTORY)
    sound = []
    for name in files.listdir(directory) if files.exists(directory) else []:
        path = join(directory, name)
        if PUBLISHED.fullmatch(name):
            meta = _audit_one(files, path, name, book)
            if meta is not None:
                sound.append(meta)
        elif name.endswith((TEMPORARY, PARTIAL)):
            what = "a snapshot on its way in" if name.endswith(PARTIAL) else "an unfinished one"
            book.note(path, f"{what}; it is used or removed at the next start")
        else:
            book.note(path, "not a name that a snapshot has")
    return sorted(sound, key=lambda meta: meta.index)


def _audit_one(files: Files, path: str, name: str, book: Book) -> SnapshotMeta | None:
    try:
        meta = _manifest(files, path, book)
        if int(name[:20]) != meta.index:
            raise SnapshotCorrupt(f"the manifest is for index {meta.index}", path=path)
    except SnapshotCorrupt as error:
        book.damaged(error.path or path, error.detail, _MEANS)
        return None
    except StorageError as error:
        book.damaged(path, str(error), _MEANS)
        return None
    is_sound = True
    for each in meta.files:
        try:
            for chunk in checked_chunks(files, join(path, each.name), each):
                book.read(len(chunk))
        except StorageError as error:
            is_sound = False
            detail = error.detail if isinstance(error, SnapshotCorrupt) else str(error)
            book.damaged(join(path, each.name), detail, _MEANS)
    return meta if is_sound else None


def _manifest(files: Files, path: str, book: Book) -> SnapshotMeta:
    manifest = join(path, MANIFEST_NAME)
    if not files.exists(manifest):
        raise SnapshotCorrupt("the manifest is missing", path=path)
    file = files.open(manifest)
    try:
        data = file.pread(MANIFEST_BYTES_MAX + 1, 0)
    finally:
        file.close()
    book.read(len(data))
    return SnapshotMeta.decode(data, manifest)

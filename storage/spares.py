"""Owns segments of the log that are not needed any more, kept to be written over as new ones.

    log/00000000000000000007.spare      what was 00000000000000000007.seg; removed at the next open

Writing over blocks that a file has already, in pages that are cached already, costs a fraction of
making a file longer: no blocks are given, no pages taken, and an fsync has no metadata to write. So
a log that is cut in front as fast as it grows lives in the same few files.

Where a segment that was made so ends, bytes of earlier lives follow. What keeps them from passing
for anything:

- Every life has a random salt of its own. It seeds the checksum of each batch header inside, so no
  batch of an earlier life is ever sound: see `records.py`.
- RECYCLED in the header says that such bytes may follow the last batch. Where no batch of this life
  begins there, and none comes later, the segment ends: `replay.py`. What a batch of this life
  proves is proven as everywhere.
- They are there only in the last segment. It is cut to its length before the next one is begun, and
  at open, as a torn end is: so nothing that a crash left there meets what is written afterwards.
- A file whose bytes somebody may still read is never kept: see `SegmentedLog.stretch`.

The one rule: a file has one name that counts at a time. The old one is durably gone before the
first byte is written over, and the new one comes when the new header is durable. After a crash in
between there is a spare, which is removed, or the segment that it was, or the one that it became.
"""

from __future__ import annotations

from shardnode.storage.files import File, Files

SPARE = ".spare"
"""Ends the name of a file that is kept for its blocks alone."""


class Spares:
    """The spare segments in one directory."""

    def __init__(self, files: Files, directory: str, most: int) -> None:
        self._files = files
        self._directory = directory
        self._most = most
        self._paths: list[str] = []

    def __len__(self) -> int:
        return len(self._paths)

    def keep(self, path: str) -> bool:
        """Durably take a segment out of the log, keeping its file; False when there are enough."""
        if len(self._paths) >= self._most:
            return False
        spare = path.removesuffix(".seg") + SPARE
        self._files.rename(path, spare)
        self._files.sync_dir(self._directory)
        self._paths.append(spare)
        return True

    def take(self) -> tuple[File, str] | None:
        """A file that may be written over, and its name; it is not ours any more."""
        if not self._paths:
            return None
        path = self._paths.pop()
        return self._files.open(path), path

    def drop(self) -> None:
        """Give the space back."""
        while self._paths:
            self._files.remove(self._paths.pop())

"""Whatever happens while backups are taken: every moment that can be restored is what it was."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pytest

from shardnode.backup.format import Manifest
from shardnode.backup.restore import RestoreOptions, plan
from shardnode.backup.take import TakeOptions
from shardnode.wire.cuts import LEASE_MS
from shardnode.wire.errors import NotFound, Unavailable
from tests.backup.kit import Shard, Source, check_equal, check_shard, folder_store, restored, take


class Story:
    """Random work on a source, with backups in between."""

    def __init__(self, folder: Path, seed: int, shards: int) -> None:
        self.draw = random.Random(seed)
        self.folder = folder
        self.source = Source(folder / "source", shards)
        keep = self.draw.choice([0, 50, 1_000])
        for shard in self.source.shards:
            shard.keep_entries(keep)
        self.store = folder_store(folder)
        self.backups: list[Manifest] = []
        self._topics = 0
        self._places = 0

    def work(self, steps: int) -> None:
        for _ in range(steps):
            shard = self.draw.choice(self.source.shards)
            self._step(shard)

    def _step(self, shard: Shard) -> None:
        draw, source = self.draw, self.source
        chance = draw.random()
        if chance < 0.55:
            keys = draw.sample(shard.keys(40), draw.randrange(1, 6))
            shard.put({key: draw.randbytes(draw.randrange(300)) for key in keys})
        elif chance < 0.65:
            shard.delete(draw.sample(shard.keys(40), 3))
        elif chance < 0.85 and source.namespaces:
            namespace = draw.choice(source.namespaces)
            source.owner_of(namespace).append(namespace, draw.randbytes(draw.randrange(200)))
        elif chance < 0.88 and self._topics < 3:
            self._topics += 1
            source.create_topic(f"shop/t{self._topics}")
        elif chance < 0.92:
            shard.counter.replica.flush()
        elif chance < 0.95:
            shard.snapshot()
        elif chance < 0.97:
            shard.cut_log()
        else:
            source.pass_time(draw.randrange(1, 5_000))

    def _meddle(self, shard: int) -> None:
        """Others go on working, and processes die."""
        chance = self.draw.random()
        if chance < 0.3:
            self._step(self.draw.choice(self.source.shards))
        elif chance < 0.34:
            self.source.shards[shard].crash()
        elif chance < 0.36:
            raise Unavailable("nobody answers")
        elif chance < 0.38:
            self.source.shards[shard].revoke()

    def back_up(self) -> None:
        self.source.meddle = self._meddle
        before = [shard.applied for shard in self.source.shards]
        taken = take(self.source, self.store, TakeOptions(full=self.draw.random() < 0.2))
        self.source.meddle = lambda _: None
        manifest = taken.manifest
        assert all(cut.index >= index for cut, index in zip(manifest.cuts, before, strict=True))
        self.source.pass_time(LEASE_MS + 1)
        assert not any(len(shard.counter.service.cuts) for shard in self.source.shards)
        self.backups.append(manifest)

    def place(self) -> Path:
        self._places += 1
        return self.folder / f"restored-{self._places}"

    def check_backup(self, manifest: Manifest) -> None:
        made, opened = restored(self.store, self.place(), RestoreOptions(backup=manifest.id))
        assert made.backup == manifest.id
        check_equal(self.source, manifest, opened)
        for found in opened:
            found.close()

    def _possible(self, options: Callable[[], RestoreOptions]) -> RestoreOptions:
        """One that the backups have what it takes for; the others are refused with the reason."""
        for _ in range(1_000):
            wanted = options()
            with suppress(NotFound):
                plan(self.store, wanted)
                return wanted
        raise AssertionError("hardly a moment can be restored")

    def check_index(self) -> None:
        """Restore the shards as of random indexes."""
        last = self.backups[-1].cuts
        wanted = self._possible(
            lambda: RestoreOptions(
                to_index={cut.shard: self.draw.randrange(1, cut.index + 1) for cut in last}
            )
        )
        _, opened = restored(self.store, self.place(), wanted)
        for shard, found in zip(self.source.shards, opened, strict=True):
            check_shard(shard, found, wanted.to_index[shard.number])
            found.close()

    def check_time(self) -> None:
        """Restore everything as of a random time."""
        first = min(shard.changes[0].stamp_ms for shard in self.source.shards)
        wanted = self._possible(
            lambda: RestoreOptions(to_ms=self.draw.randrange(first, self.source.now_ms()))
        )
        assert wanted.to_ms is not None
        made, opened = restored(self.store, self.place(), wanted)
        for shard, found, point in zip(self.source.shards, opened, made.points, strict=True):
            by_then = [change for change in shard.changes if change.stamp_ms <= wanted.to_ms]
            assert found.rows() == shard.rows_at(by_then[-1].index if by_then else 0)
            messages = [
                message
                for each in shard.messages.values()
                for _, stamp_ms, message in each
                if stamp_ms <= wanted.to_ms
            ]
            assert sorted(chain.from_iterable(found.messages().values())) == sorted(messages)
            assert found.rows() == shard.rows_at(point.index)
            found.close()


@pytest.mark.parametrize("seed", range(2))
def test_every_moment_of_every_backup_is_what_it_was(tmp_path: Path, seed: int) -> None:
    story = Story(tmp_path, seed, shards=1 + seed % 2)
    with story.source:
        for shard in story.source.shards:
            shard.put({shard.keys(1)[0]: b"first"})
        for _ in range(4):
            story.work(60)
            story.back_up()
        for manifest in story.backups:
            story.check_backup(manifest)
        for _ in range(5):
            story.check_index()
            story.check_time()

"""The engine against a dict, with flushes in slices, crashes and reopening at any moment."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shardnode.storage.engine import Engine, EngineOptions, Item, MemoryEngine
from shardnode.storage.engine_values import keep, keep_many
from tests.engine.kit import make_engine, reopen

KEYS = st.binary(min_size=1, max_size=2)
OPTIONS = EngineOptions(table_bytes=3_000, slice_keys=2, map_bytes=1 << 16, map_bytes_max=1 << 30)

Model = dict[bytes, bytes]


class EngineMachine(RuleBasedStateMachine):
    """`committed` holds what each crash may go back to, oldest first."""

    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(mkdtemp())
        self.engine: Engine = make_engine(self.kind, self.directory, OPTIONS)
        self.index = 0
        self.model: Model = {}
        self.committed: list[tuple[int, Model]] = [(0, {})]
        self.flushing: tuple[int, Model] | None = None

    @rule(keys=st.lists(KEYS, min_size=1, max_size=8, unique=True), size=st.integers(0, 300))
    def put(self, keys: list[bytes], size: int) -> None:
        self.index += 1
        values = [key + bytes(size) for key in keys]
        self.engine.put_many(keys, keep_many(self.index, 0, keys, values), sum(map(len, values)))
        self.model.update((k, keep(self.index, 0, k, v)) for k, v in zip(keys, values, strict=True))

    @rule(keys=st.lists(KEYS, min_size=1, max_size=8, unique=True))
    def delete(self, keys: list[bytes]) -> None:
        self.index += 1
        self.engine.delete_many(keys)
        for key in keys:
            self.model.pop(key, None)

    @precondition(lambda self: self.flushing is None)
    @rule()
    def begin_flush(self) -> None:
        self.engine.begin_flush(self.index, {"blob": b"%d" % self.index})
        self.flushing = (self.index, dict(self.model))

    @precondition(lambda self: self.flushing is not None)
    @rule(keys_max=st.integers(1, 40))
    def flush_slice(self, keys_max: int) -> None:
        if self.engine.flush_slice(keys_max):
            self._commit()

    @precondition(lambda self: self.flushing is not None)
    @rule()
    def flush_rest(self) -> None:
        while not self.engine.flush_slice(100):
            pass
        self._commit()

    def _commit(self) -> None:
        assert self.flushing is not None
        self.engine.commit_flush()
        self.committed = [self.committed[-1], self.flushing]
        self.flushing = None

    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        if isinstance(self.engine, MemoryEngine):
            if power:
                self.committed = self.committed[:1]
            self.engine.crash(power=power)
        else:
            self.engine = reopen(self.engine, self.directory, OPTIONS)
        index, model = self.committed[-1]
        self.index, self.model, self.flushing = index, dict(model), None
        self.committed = [self.committed[-1]]
        assert self.engine.durable_index == index, "what is found at the start is durable"

    @rule(items=st.dictionaries(KEYS, st.binary(max_size=9), max_size=20))
    def replace(self, items: dict[bytes, bytes]) -> None:
        self.index += 1
        kept: list[Item] = sorted((key, keep(self.index, 0, key, v)) for key, v in items.items())
        self.engine.replace(self.index, {"blob": b"%d" % self.index}, [kept[:5], kept[5:]])
        self.model, self.flushing = dict(kept), None
        self.committed = [(self.index, dict(kept))]

    @rule()
    def pinned_items_are_those_of_the_last_commit(self) -> None:
        found = [item for batch in self.engine.pin() for item in batch]
        assert found == sorted(self.committed[-1][1].items())

    @invariant()
    def reads_agree(self) -> None:
        keys = [*self.model, b"none"]
        assert [each or None for each in self.engine.get_many(keys)] == [
            self.model.get(key) for key in keys
        ]
        for key in keys[-3:]:
            assert (self.engine.get(key) or None) == self.model.get(key)
        for reverse in (False, True):
            found = [item for some in self.engine.scan(b"", None, reverse=reverse) for item in some]
            assert found == sorted(self.model.items(), reverse=reverse)

    @invariant()
    def indexes_agree(self) -> None:
        assert self.engine.index == self.committed[-1][0]
        assert self.engine.durable_index == self.committed[0][0]
        blob = b"%d" % self.engine.index if self.engine.index else self.engine.blob("blob")
        assert self.engine.blob("blob") == blob

    def teardown(self) -> None:
        self.engine.close()
        shutil.rmtree(self.directory)


class LmdbMachine(EngineMachine):
    kind = "lmdb"


TestMemoryEngine = EngineMachine.TestCase
TestLmdbEngine = LmdbMachine.TestCase
TestMemoryEngine.settings = settings(max_examples=60, stateful_step_count=40)
TestLmdbEngine.settings = settings(max_examples=30, stateful_step_count=40)

"""The load of crash cycles: a few writers, each with keys and a session of its own.

The one rule: a key has one writer, which has one request under way. So what a request finds and
its writer did not leave there is a mistake of the node: a lost write, or one that came twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from random import Random

from shardnode.client import AsyncClient, Conflict, ShardnodeError
from shardnode.testing.crash_model import Model
from shardnode.testing.history import NO_EFFECT

PREFIX = b"crash/"
KEYS_EACH = 48
MIX = {"put": 4, "cas": 5, "delete": 2, "put_many": 3, "get": 2}
MANY = 24
VALUE_BYTES = (16, 6_000)
"""Large enough that segments fill and flushes come within a second."""

TIMEOUT_S = 5.0

ShardOf = Callable[[bytes], int]


def keys_of(writer: int) -> list[bytes]:
    return [b"%s%d/%02d" % (PREFIX, writer, number) for number in range(KEYS_EACH)]


class Writer:
    """One client's requests, one after another, until it is cancelled."""

    def __init__(self, model: Model, number: int, tag: str, random: Random) -> None:
        self.problems: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self._model = model
        self._keys = keys_of(number)
        self._tag = f"{tag}-{number}"
        self._random = random
        self._count = 0

    async def run(self, address: str, shard_of: ShardOf) -> None:
        kinds: dict[str, Callable[[AsyncClient, ShardOf], Awaitable[None]]] = {
            "put": self._put,
            "cas": self._cas,
            "delete": self._delete,
            "put_many": self._put_many,
            "get": self._get,
        }
        async with AsyncClient(address, timeout=TIMEOUT_S) as client:
            while self._free():
                kind = self._random.choices(list(MIX), weights=list(MIX.values()))[0]
                await kinds[kind](client, shard_of)

    def _free(self) -> list[bytes]:
        return [key for key in self._keys if not self._model.cells[key].in_doubt]

    def _value(self) -> bytes:
        self._count += 1
        return (
            b"%s-%d "
            % (self._tag.encode(), self._count)
            * (self._random.randint(*VALUE_BYTES) // 16)
        )

    async def _put(self, client: AsyncClient, shard_of: ShardOf) -> None:
        key, value = self._random.choice(self._free()), self._value()
        await self._write([key], [value], shard_of, lambda: _one(client.put(key, value)))

    async def _put_many(self, client: AsyncClient, shard_of: ShardOf) -> None:
        free = self._free()
        pairs = {key: self._value() for key in self._random.sample(free, min(MANY, len(free)))}
        await self._write(
            list(pairs), list(pairs.values()), shard_of, lambda: client.put_many(pairs)
        )

    async def _cas(self, client: AsyncClient, shard_of: ShardOf) -> None:
        key, value = self._random.choice(self._free()), self._value()
        version = self._model.cells[key].sure[1]
        await self._write(
            [key], [value], shard_of, lambda: _one(client.cas(key, value, version=version))
        )

    async def _write(
        self,
        keys: Sequence[bytes],
        values: Sequence[bytes],
        shard_of: ShardOf,
        send: Callable[[], Awaitable[list[int]]],
    ) -> None:
        cells = [self._model.cells[key] for key in keys]
        before = [self._model.highest.get(shard_of(key), 0) for key in keys]
        for cell, value in zip(cells, values, strict=True):
            cell.trying(value)
        try:
            versions = await send()
        except Conflict as error:
            self._wrong(f"{keys[0]!r}: its only writer met {error}; it left {cells[0].sure[1]}")
            return
        except ShardnodeError as error:
            # Of many keys some may have got through, so that certainty is for one alone.
            self._failed(error)
            if isinstance(error, NO_EFFECT) and len(keys) == 1:
                cells[0].refused()
            return
        self.outcomes["ok"] += 1
        for key, cell, value, low, version in zip(
            keys, cells, values, before, versions, strict=True
        ):
            cell.done(value, version)
            if wrong := self._model.acknowledged(shard_of(key), low, version):
                self._wrong(f"{key!r}: {wrong}")

    async def _delete(self, client: AsyncClient, _: ShardOf) -> None:
        key = self._random.choice(self._free())
        cell = self._model.cells[key]
        cell.trying(None)
        try:
            deleted = await client.delete(key)
        except ShardnodeError as error:
            self._failed(error)
            if isinstance(error, NO_EFFECT):
                cell.refused()
            return
        self.outcomes["ok"] += 1
        if deleted != (cell.sure[0] is not None):
            self._wrong(f"{key!r}: deleting gave {deleted}, acknowledged was {cell.sure[1]}")
        cell.done(None, 0)

    async def _get(self, client: AsyncClient, _: ShardOf) -> None:
        key = self._random.choice(self._free())
        try:
            entry = await client.get_entry(key)
        except ShardnodeError as error:
            self._failed(error)
            return
        self.outcomes["ok"] += 1
        found = (entry.value, entry.version) if entry is not None else (None, 0)
        if wrong := self._model.cells[key].found(*found):
            self._wrong(f"{key!r}: {wrong}")

    def _failed(self, error: ShardnodeError) -> None:
        self.outcomes[type(error).__name__] += 1

    def _wrong(self, what: str) -> None:
        self.problems.append(what)


async def _one(version: Awaitable[int]) -> list[int]:
    return [await version]


async def read_all(client: AsyncClient) -> dict[bytes, tuple[bytes | None, int]]:
    """Everything that is stored, with versions."""
    return {entry.key: (entry.value, entry.version) async for entry in client.scan(prefix=PREFIX)}


async def run_for(work: Sequence[Coroutine[None, None, None]], over: asyncio.Event) -> None:
    """All of it until `over`; what is under way then is left without an answer."""
    tasks = [asyncio.create_task(each) for each in work]
    ended = asyncio.create_task(over.wait())
    await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
    while not over.is_set() and not all(task.done() for task in tasks):
        await asyncio.wait(
            [ended, *(t for t in tasks if not t.done())], return_when=asyncio.FIRST_COMPLETED
        )
    for task in (ended, *tasks):
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result

"""Load for a cluster under test: concurrent clients whose operations are all recorded.

    with Load(cluster.addresses, workers=8) as load:
        …                                        # faults
        load.stop()                              # waits for what is under way
    findings = check_by_index(load.operations)

The one rule: every worker is a client of its own with a session of its own, keeps to the keys of
one shard, and has one operation under way. So a shard without a leader holds up no other, and an
order within one worker is an order for everybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from shardnode.client import AsyncClient, Client, Do, If, InvalidRequest, ShardnodeError
from shardnode.testing.history import Operation, Recorder
from shardnode.testing.load_base import BaseLoad, Recorded

MIX = {"put": 4, "get": 4, "cas": 3, "delete": 1, "plain delete": 1, "swap": 3, "get swapped": 1}
"""How often each kind comes up."""

READERS = 0.25
"""The part of workers that only read. Who writes soon notices that a leader is cut off, and turns
to its successor; who only reads would believe a leader that lies for as long as it answers."""

LEASE_READS = 0.3
"""The part of reads that go without a round: they promise the same."""


class Load(BaseLoad):
    """Keys are put, read, swapped and deleted."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        workers: int = 8,
        keys_per_shard: int = 6,
        timeout: float = 5.0,
        pause_s: float = 0.002,
        seed: int = 0,
        prefix: str = "key",
    ) -> None:
        self._addresses = list(addresses)
        self._workers = workers
        self._timeout = timeout
        self._pause_s = pause_s
        self._seed = seed
        self.recorder = Recorder()
        self.keys = self._choose_keys(prefix, keys_per_shard)
        """Shard → its keys. Of each, `/a` and `/b` are the cells of one that is only swapped."""
        super().__init__(sorted(self.keys))

    @property
    def operations(self) -> list[Operation]:
        """What was recorded so far."""
        return self.recorder.operations

    @property
    def recorded(self) -> Sequence[Recorded]:
        return self.recorder.operations

    def save(self, path: Path) -> None:
        self.recorder.save(path)

    def _choose_keys(self, prefix: str, count: int) -> dict[int, list[bytes]]:
        with Client(self._addresses, timeout=30.0) as client:
            table = client.topology().table
        keys: dict[int, list[bytes]] = {shard: [] for shard in range(table.shards)}
        number = 0
        while any(len(chosen) < count for chosen in keys.values()):
            # In braces, so that whatever is appended to it stays on its shard.
            key = f"{{{prefix}-{number}}}".encode()
            chosen = keys[table.shard_of_key(key)]
            if len(chosen) < count:
                chosen.append(key)
            number += 1
        return keys

    # In the thread.

    async def work(self) -> None:
        shards = sorted(self.keys)
        await asyncio.gather(
            *(self._work(number, shards[number % len(shards)]) for number in range(self._workers))
        )

    async def _work(self, number: int, shard: int) -> None:
        worker = Worker(self.recorder, number, shard, Random(self._seed * 1_000 + number))
        kinds = {"get": 1} if number >= self._workers * (1 - READERS) else MIX
        first = number % len(self._addresses)  # not all of them ask the same node for the way
        addresses = self._addresses[first:] + self._addresses[:first]
        async with AsyncClient(addresses, timeout=self._timeout) as client:
            while not self.stopping:
                await worker.step(client, worker.random.choice(self.keys[shard]), kinds)
                await asyncio.sleep(worker.random.uniform(0, 2 * self._pause_s))


class Worker:
    """One client's operations, one after another."""

    def __init__(self, recorder: Recorder, process: int, shard: int, random: Random) -> None:
        self._recorder = recorder
        self._process = process
        self._shard = shard
        self.random = random
        self._known: dict[bytes, tuple[bytes | None, int]] = {}
        """What this worker last saw of a key; a cas builds on it."""
        self._count = 0
        self._kinds: dict[str, Callable[[AsyncClient, bytes], Awaitable[None]]] = {
            "put": self._put,
            "get": self._get,
            "cas": self._cas,
            "delete": self._delete,
            "plain delete": self._plain_delete,
            "swap": self._swap,
            "get swapped": self._get_swapped,
        }

    async def step(self, client: AsyncClient, key: bytes, kinds: Mapping[str, int]) -> None:
        kind = self.random.choices(list(kinds), weights=list(kinds.values()))[0]
        begin = len(self._recorder.operations)
        try:
            await self._kinds[kind](client, key)
        except InvalidRequest:
            raise  # a mistake in this file
        except ShardnodeError as error:
            operation = next(
                o for o in self._recorder.operations[begin:] if o.process == self._process
            )
            operation.ended_with(error)
            self._known.pop(key, None)

    def _begin(self, kind: str, key: bytes, **about: object) -> Operation:
        return self._recorder.begin(self._process, kind, key, shard=self._shard, **about)

    def _unique(self) -> bytes:
        self._count += 1
        return b"%d-%d" % (self._process, self._count)

    async def _put(self, client: AsyncClient, key: bytes) -> None:
        operation = self._begin("put", key, value=(value := self._unique()))
        operation.ok(await client.put(key, value))
        self._known[key] = value, operation.version or 0

    async def _get(self, client: AsyncClient, key: bytes) -> None:
        level = "lease" if self.random.random() < LEASE_READS else "linearizable"
        operation = self._begin("get", key)
        entry = await client.get_entry(key, consistency=level)  # type: ignore[arg-type]
        if entry is None:
            operation.ok(seen_version=0)
        else:
            operation.ok(seen=entry.value, seen_version=entry.version)
        self._known[key] = operation.seen, operation.seen_version or 0

    async def _cas(self, client: AsyncClient, key: bytes) -> None:
        if key not in self._known:
            await self._get(client, key)
            return
        expected, version = self._known.pop(key)
        operation = self._begin(
            "cas", key, value=(value := self._unique()), expected=expected, expected_version=version
        )
        operation.ok(await client.cas(key, value, version=version))
        self._known[key] = value, operation.version or 0

    async def _delete(self, client: AsyncClient, key: bytes) -> None:
        """A delete has no version of its own. The key written beside it has, and it is the same."""
        operation = self._begin("delete", key)
        grave = Do.put(key + b"/grave", self._unique())
        found, beside = (await client.transact(then=[Do.delete(key), grave])).results
        operation.ok(beside.version, seen_version=found.version)
        self._known[key] = None, 0

    async def _swap(self, client: AsyncClient, key: bytes) -> None:
        """Reads and writes in one entry, whatever is there: the chain of swaps shows every effect
        that came twice. A transaction names a key once, so the value moves between two cells."""
        operation = self._begin("swap", key + b"/swap", value=(value := self._unique()))
        a, b = key + b"/a", key + b"/b"
        done = await client.transact(
            compare=[If.exists(a)],
            then=[Do.delete(a), Do.put(b, value)],
            otherwise=[Do.delete(b), Do.put(a, value)],
        )
        found, written = done.results
        operation.ok(written.version, seen_version=found.version)

    async def _get_swapped(self, client: AsyncClient, key: bytes) -> None:
        operation = self._begin("get", key + b"/swap")
        cells = (await client.transact(then=[Do.get(key + b"/a"), Do.get(key + b"/b")])).results
        found = max(cells)
        operation.ok(seen=found.value, seen_version=found.version)

    async def _plain_delete(self, client: AsyncClient, key: bytes) -> None:
        operation = self._begin("delete", key)
        operation.ok(existed=bool(await client.delete(key)))
        self._known[key] = None, 0


def read_all(load: Load, client: Client, *, process: int = -1) -> None:
    """Record what every key holds; after the load has stopped that is the final state."""
    for shard, keys in load.keys.items():
        for key in keys:
            operation = load.recorder.begin(process, "get", key, shard=shard)
            entry = client.get_entry(key)
            if entry is None:
                operation.ok(seen_version=0)
            else:
                operation.ok(seen=entry.value, seen_version=entry.version)
            operation = load.recorder.begin(process, "get", key + b"/swap", shard=shard)
            found = max(client.transact(then=[Do.get(key + b"/a"), Do.get(key + b"/b")]).results)
            operation.ok(seen=found.value, seen_version=found.version)

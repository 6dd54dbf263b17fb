"""The proxy between nodes: a process of its own that forwards connections and does harm on demand.

    python -m shardnode.testing.proxy SEED

It reads one JSON object per line and answers each with one; it ends when its input does, so it
never outlives whoever started it. `proxy_control.Proxy` is the other end.

    {"do": "route", "name": "1>2", "listen": [host, port], "target": [host, port]}
    {"do": "set", "name": "1>2", "side": "out", "faults": {"cut": true, "delay_ms": 20 …}}
    {"do": "refuse", "name": "1>2"}      connections are reset, new ones refused
    {"do": "reset", "name": "1>2"}       connections are reset, new ones are welcome
    {"do": "heal"}                       everything is as at the beginning
    {"do": "counts"}                     what was done so far
    {"do": "guard", "pid": 123}          kill it and its children when the input ends

The one rule: a link's side `out` is what whoever connects sends, `back` is what is answered.
Routes of one name share their faults.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any

import psutil

from shardnode.testing.proxy_stream import HEALTHY, Cutter, Faults, suffered

HELD_BYTES_MAX = 1 << 20
"""Of what a cut holds back; beyond this the sender has to wait, as with TCP."""


class Pipe:
    """One direction of one connection."""

    def __init__(self, link: Link, side: str) -> None:
        self._link = link
        self._side = side
        self._cutter = Cutter()
        self._source: asyncio.Transport | None = None
        self._target: asyncio.Transport | None = None
        self._queue: list[tuple[float, int, bytes]] = []
        """When it leaves, its number, the bytes."""
        self._queued_bytes = 0
        self._number = 0
        self._last_due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._slow_reader = False

    def reads_from(self, source: asyncio.Transport) -> None:
        self._source = source

    def writes_to(self, target: asyncio.Transport) -> None:
        self._target = target
        self.pump()

    def fed(self, data: bytes) -> None:
        """Bytes came."""
        link, faults = self._link, self._link.faults[self._side]
        units = self._cutter.feed(data)
        link.counts["messages"] += len(units)
        if faults is HEALTHY and not self._queue and self._target is not None:
            self._target.write(b"".join(unit.data for unit in units))
            return
        now = link.loop.time()
        for unit in units:
            copies = suffered(unit, faults, link.random)
            if len(copies) != 1:
                link.counts["duplicated" if copies else "dropped"] += 1
            for late_ms, copy in copies:
                link.counts["corrupted"] += copy != unit.data
                jitter_ms = link.random.uniform(0.0, faults.jitter_ms)
                due = max(now + (faults.delay_ms + jitter_ms) / 1_000, self._last_due)
                if late_ms:
                    due += late_ms / 1_000
                else:
                    self._last_due = due
                self._number += 1
                heappush(self._queue, (due, self._number, copy))
                self._queued_bytes += len(copy)
        self.pump()

    def pump(self) -> None:
        """Let go what may leave now."""
        if self._target is None or self._target.is_closing():
            return
        now, queue = self._link.loop.time(), self._queue
        leaving = []
        if not self._link.faults[self._side].cut:
            while queue and queue[0][0] <= now:
                leaving.append(heappop(queue)[2])
        if leaving:
            data = b"".join(leaving)
            self._queued_bytes -= len(data)
            self._target.write(data)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if queue and not self._link.faults[self._side].cut:
            self._timer = self._link.loop.call_at(queue[0][0], self.pump)
        self._hold_back()

    def slow_reader(self, is_slow: bool) -> None:
        """The far end does not keep up, or does again."""
        self._slow_reader = is_slow
        self._hold_back()

    def _hold_back(self) -> None:
        if self._source is None or self._source.is_closing():
            return
        if self._slow_reader or self._queued_bytes > HELD_BYTES_MAX:
            self._source.pause_reading()
        else:
            self._source.resume_reading()


class Side(asyncio.Protocol):
    """One socket of a connection: it feeds one pipe and the other pipe writes to it."""

    def __init__(self, connection: Connection, feeds: Pipe, drains: Pipe) -> None:
        self._connection = connection
        self._feeds = feeds
        self._drains = drains

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connection.transports.append(transport)
        if self._connection.over:
            transport.abort()
            return
        self._feeds.reads_from(transport)
        self._drains.writes_to(transport)
        self._connection.side_is_up()

    def data_received(self, data: bytes) -> None:
        self._feeds.fed(data)

    def pause_writing(self) -> None:
        self._drains.slow_reader(True)

    def resume_writing(self) -> None:
        self._drains.slow_reader(False)

    def connection_lost(self, _: Exception | None) -> None:
        self._connection.end()


class Connection:
    """What a node connected, and our connection to where it wanted to go."""

    def __init__(self, link: Link, target: tuple[str, int]) -> None:
        self._link = link
        self._target = target
        self.over = False
        self.transports: list[asyncio.Transport] = []
        self.out = Pipe(link, "out")
        self.back = Pipe(link, "back")
        self._task: asyncio.Task[None] | None = None
        link.connections.add(self)

    def near_side(self) -> Side:
        return Side(self, feeds=self.out, drains=self.back)

    def side_is_up(self) -> None:
        if self._task is None:
            self._task = self._link.loop.create_task(self._dial())

    async def _dial(self) -> None:
        try:
            await self._link.loop.create_connection(
                lambda: Side(self, feeds=self.back, drains=self.out), *self._target
            )
        except OSError:
            self.end()

    def end(self) -> None:
        """Reset both sides: what was under way is lost."""
        self.over = True
        self._link.connections.discard(self)
        for transport in self.transports:
            transport.abort()


class Link:
    """All routes of one name: from one node to another."""

    def __init__(self, name: str, random: Random, counts: Counter[str]) -> None:
        self.name = name
        self.random = random
        self.counts = counts
        self.loop = asyncio.get_running_loop()
        self.faults = {"out": HEALTHY, "back": HEALTHY}
        self.connections: set[Connection] = set()
        self._routes: list[tuple[tuple[str, int], tuple[str, int]]] = []
        self._servers: list[asyncio.Server] = []

    async def add(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self._routes.append((listen, target))
        await self._listen(listen, target)

    async def _listen(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        server = await self.loop.create_server(
            lambda: Connection(self, target).near_side(), *listen, reuse_address=True
        )
        self._servers.append(server)

    def set(self, side: str, faults: Faults) -> None:
        self.faults[side] = HEALTHY if faults == HEALTHY else faults
        for connection in self.connections:
            (connection.out if side == "out" else connection.back).pump()

    def refuse(self) -> None:
        for server in self._servers:
            server.close()
        self._servers = []
        self.reset()

    def reset(self) -> None:
        for connection in list(self.connections):
            connection.end()

    async def heal(self) -> None:
        if not self._servers:
            for listen, target in self._routes:
                await self._listen(listen, target)
        for side in self.faults:
            self.set(side, HEALTHY)


class Server:
    """All links, and the commands."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._counts: Counter[str] = Counter()
        self._links: dict[str, Link] = {}
        self._guarded: list[psutil.Process] = []

    def end(self) -> None:
        """Kill what is guarded; it is gone already unless our user was killed."""
        for process in self._guarded:
            try:
                for each in [process, *process.children(recursive=True)]:
                    each.kill()
            except psutil.NoSuchProcess:
                continue

    async def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        do = command.pop("do")
        if do == "counts":
            return dict(self._counts)
        if do == "guard":
            self._guarded.append(psutil.Process(command["pid"]))
            return {}
        if do == "heal":
            for link in self._links.values():
                await link.heal()
            return {}
        name = command["name"]
        if do == "route":
            if name not in self._links:
                self._links[name] = Link(name, self._random, self._counts)
            listen, target = command["listen"], command["target"]
            await self._links[name].add((listen[0], listen[1]), (target[0], target[1]))
        elif do == "set":
            self._links[name].set(command["side"], Faults(**command["faults"]))
        elif do == "refuse":
            self._links[name].refuse()
        elif do == "reset":
            self._links[name].reset()
        else:
            raise ValueError(f"expected a command of this module's list, found {do!r}")
        return {}


async def serve(seed: int) -> None:
    """Obey until the input ends."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    server = Server(Random(seed))
    while line := await lines.readline():
        try:
            answer = await server.obey(json.loads(line))
        except (OSError, ValueError, TypeError, KeyError, psutil.Error) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    server.end()


def main(arguments: Sequence[str]) -> None:
    asyncio.run(serve(int(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Streams against Redis, in one run: appending, reading, many at once, and a thousand partitions.

    .venv/bin/python -P -m shardnode.bench.streams [--seconds N] [--only WORD]

    append      100 B messages, 1,000 a batch, 2 shards, against redis-benchmark XADD -P 100 with
                appendfsync always, for about as long: on one stream, and on as many as there are
                partitions
    read        a consumer of 8 partitions, 1,000 messages a poll, against redis-py XREAD COUNT 1000
    fair        8 producers and 8 consumers at once on 8 partitions: the slowest against the fastest
    many        1,000 partitions on one node: start, idle CPU and memory above an empty node

Every append is on disk before it is answered, here and there. Load generators are not pinned: they
share the cores with the servers, as redis-benchmark does. Ends with status 1 below a target.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil

from shardnode import AsyncClient, Client, NotFound
from shardnode.bench import peers
from shardnode.bench.figures import Missing, Table
from shardnode.bench.node import folder
from shardnode.node.config_load import load_config
from shardnode.node.handle import Node

TOPIC = "bench/messages"
BATCH = 1_000
VALUE = b"v" * 100
PARTITIONS = 8
MANY = 1_000
LOADS = 2
IN_FLIGHT = 64
"""Batches that each of the load processes has under way: the more there are, the more of them share
an fsync. redis-benchmark has 50 clients with 100 messages each."""


@contextmanager
def node_on(data: Path, shards: int) -> Iterator[Node]:
    flags: dict[str, Any] = {"shards": shards, "data": str(data), "listen": "127.0.0.1:0"}
    with Node(load_config(flags={**flags, "http": "off"})) as running:
        running.wait_ready()
        yield running


@contextmanager
def node(shards: int) -> Iterator[str]:
    with folder() as data, node_on(data, shards) as running:
        yield str(running.address)


# -- load processes ---------------------------------------------------------------------------


def _together(target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> list[Any]:
    """Run one process for each, let them begin together, and gather what they send."""
    context = get_context("spawn")
    running = []
    for each in arguments:
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(*each, theirs))
        process.start()
        running.append((ours, process))
    for pipe, _ in running:
        pipe.recv()
    for pipe, _ in running:
        pipe.send("go")
    found = [pipe.recv() for pipe, _ in running]
    for _, process in running:
        process.join()
    return found


def _append(address: str, partitions: list[int], seconds: float, sink: Any) -> None:
    """Batches to these partitions, a few under way at once; (messages, seconds)."""
    asyncio.run(_append_all(address, partitions, seconds, sink))


async def _append_all(address: str, partitions: list[int], seconds: float, sink: Any) -> None:
    messages = [VALUE] * BATCH
    async with AsyncClient(address) as db:
        topic = db.topic(TOPIC)
        for partition in partitions:
            await topic.append([b"warm"], partition=partition)
        sink.send("ready")
        sink.recv()
        begin = time.perf_counter()
        done = 0

        async def one(partition: int) -> None:
            nonlocal done
            while time.perf_counter() - begin < seconds:
                await topic.append(messages, partition=partition)
                done += BATCH

        await asyncio.gather(*map(one, partitions))
        sink.send((done, time.perf_counter() - begin))


def _read(address: str, seconds: float, sink: Any) -> None:
    """Everything, page by page: of one partition after the other, from the first to the last."""
    with Client(address) as db:
        topic = db.topic(TOPIC)
        ends = [bounds.end for bounds in topic.all_bounds()]
        sink.send("ready")
        sink.recv()
        begin, done, offset, partition = time.perf_counter(), 0, 0, 0
        while time.perf_counter() - begin < seconds:
            page = topic.read(partition, offset, max_messages=BATCH)
            done += len(page)
            offset += len(page)
            if offset >= ends[partition]:
                offset, partition = 0, (partition + 1) % len(ends)
        sink.send((done, time.perf_counter() - begin))


def _consume(address: str, seconds: float, sink: Any) -> None:
    """The same through a consumer."""
    with Client(address) as db, db.topic(TOPIC).consumer() as consumer:
        consumer.poll(5)
        sink.send("ready")
        sink.recv()
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            done += len(consumer.poll(1, BATCH))
            if consumer.is_at_end:
                for partition in consumer.assignment:
                    consumer.seek(partition, 0)
        sink.send((done, time.perf_counter() - begin))


def _xread(port: int, count: int, seconds: float, sink: Any) -> None:
    """The same of a Redis stream of `count` entries."""
    import redis

    db = redis.Redis(port=port)
    sink.send("ready")
    sink.recv()
    begin, done, last = time.perf_counter(), 0, b"0"
    while time.perf_counter() - begin < seconds:
        found: Any = db.xread({"s": last}, count=BATCH)
        rows = found[0][1] if found else []
        done += len(rows)
        last = rows[-1][0] if rows and done % count else b"0"
    sink.send((done, time.perf_counter() - begin))


def rate_of(found: list[tuple[int, float]]) -> float:
    return sum(done / took for done, took in found)


# -- the figures ------------------------------------------------------------------------------


def bench_rates(table: Table, seconds: float) -> None:
    """Appending, then reading what was appended; the same of Redis."""
    with node(2) as address:
        with Client(address) as db:
            db.create_topic(TOPIC, PARTITIONS)
        places = [number % PARTITIONS for number in range(IN_FLIGHT)]
        appended = rate_of(_together(_append, [(address, places, seconds)] * LOADS))
        table.row("append", appended, "messages/s", processes=LOADS, in_flight=IN_FLIGHT)
        paged = rate_of(_together(_read, [(address, seconds)]))
        table.row("read page by page", paged, "messages/s")
        read = rate_of(_together(_consume, [(address, seconds)]))
        table.row("read by a consumer", read, "messages/s")
    try:
        streams = _xadd_rate("s:__rand_int__", seconds, "-r", str(PARTITIONS))
        table.ratio("append against XADD -P 100, 8 streams", appended, streams, 0, "Redis")
        single = _xadd_rate("s", seconds)
        table.ratio("append against XADD -P 100", appended, single, 10.0, "redis-benchmark")
        theirs = _xread_rate(seconds)
        table.ratio("read page by page against XREAD COUNT 1000", paged, theirs, 0, "redis-py")
        table.ratio("read against XREAD COUNT 1000", read, theirs, 8.0, "redis-py")
    except (Missing, ImportError) as why:
        table.skipped("append and read against Redis", why)


def _xadd_rate(key: str, seconds: float, *options: str) -> float:
    """About so many seconds of XADD to a Redis of its own, set as it is but for the fsync."""
    words = [*options, "XADD", key, "*", "f", VALUE.decode()]
    with folder() as place, peers.redis(place) as port:
        first = peers.redis_benchmark_command(port, words, requests=200_000, pipeline=100)
        requests = int(first * seconds)
        return peers.redis_benchmark_command(port, words, requests=requests, pipeline=100)


def _xread_rate(seconds: float, count: int = 1_000_000) -> float:
    words = ["XADD", "s", "*", "f", VALUE.decode()]
    with folder() as place, peers.redis(place) as port:
        peers.redis_benchmark_command(port, words, requests=count, pipeline=100)
        return rate_of(_together(_xread, [(port, count, seconds)]))


async def _produce_and_count(address: str, seconds: float, sink: Any) -> None:
    """One client for each partition, all at once; messages appended by partition."""
    done = [0] * PARTITIONS
    messages = [VALUE] * BATCH
    clients = [AsyncClient(address) for _ in range(PARTITIONS)]
    for number, db in enumerate(clients):
        await db.topic(TOPIC).append([b"warm"], partition=number)
    sink.send("ready")
    sink.recv()
    begin = time.perf_counter()

    async def one(number: int) -> None:
        topic = clients[number].topic(TOPIC)
        while time.perf_counter() - begin < seconds:
            await topic.append(messages, partition=number)
            done[number] += BATCH

    await asyncio.gather(*map(one, range(PARTITIONS)))
    for db in clients:
        await db.close()
    sink.send(done)


async def _consume_and_count(address: str, seconds: float, sink: Any) -> None:
    done = [0] * PARTITIONS
    clients = [AsyncClient(address) for _ in range(PARTITIONS)]
    offsets = []
    for number, db in enumerate(clients):
        offsets.append(await db.topic(TOPIC).offset(number, "latest"))
    sink.send("ready")
    sink.recv()
    begin = time.perf_counter()

    async def one(number: int) -> None:
        topic = clients[number].topic(TOPIC)
        while time.perf_counter() - begin < seconds:
            page = await topic.read(number, offsets[number], max_messages=BATCH, wait=0.5)
            done[number] += len(page)
            offsets[number] += len(page)

    await asyncio.gather(*map(one, range(PARTITIONS)))
    for db in clients:
        await db.close()
    sink.send(done)


def _side(address: str, which: str, seconds: float, sink: Any) -> None:
    side = _produce_and_count if which == "produce" else _consume_and_count
    asyncio.run(side(address, seconds, sink))


def bench_fairness(table: Table, seconds: float) -> None:
    with node(2) as address:
        with Client(address) as db:
            db.create_topic(TOPIC, PARTITIONS)
        sides = [(address, "produce", seconds), (address, "consume", seconds)]
        produced, consumed = _together(_side, sides)
    for what, done in (("producers", produced), ("consumers", consumed)):
        table.row(f"8 {what} at once", sum(done) / seconds, "messages/s", by_partition=done)
        share = min(done) / max(done)
        print(f"8 {what} at once: the slowest has {share:.2f} of the fastest (at least 0.5)")
        table.failed |= share < 0.5


def _family() -> list[psutil.Process]:
    """This process, in which the supervisor runs, and the node's others."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def _memory() -> int:
    return sum(int(each.memory_full_info().uss) for each in _family())


def _cpu(seconds: float) -> float:
    """Share of a core that all processes of a node use while nobody asks anything."""
    family = _family()
    before = sum(sum(each.cpu_times()[:2]) for each in family)
    time.sleep(seconds)
    return (sum(sum(each.cpu_times()[:2]) for each in family) - before) / seconds


def bench_many(table: Table, seconds: float) -> None:
    """What a thousand partitions cost that nobody uses just now, each with some messages."""
    with folder() as data:
        with node_on(data, 4) as running:
            time.sleep(3)
            empty_memory, empty_cpu = _memory(), _cpu(seconds)
            with Client(str(running.address), timeout=60) as db:
                topic = db.create_topic(TOPIC, MANY, timeout=60)
                for partition in range(MANY):
                    topic.append([VALUE] * 10, partition=partition)
        begin = time.perf_counter()
        with node_on(data, 4) as running:
            started = time.perf_counter() - begin
            with Client(str(running.address)) as db:
                await_partitions(db)
            time.sleep(3)
            memory, cpu = _memory(), _cpu(seconds)
    table.row("1,000 partitions, start until ready", started * 1_000, "ms", at_most="5,000 ms")
    print(f"1,000 partitions, idle: {cpu:.1%} of a core (at most 3 %), {empty_cpu:.1%} without")
    above = (memory - empty_memory) / 1e6
    print(f"1,000 partitions, memory above an empty node: {above:.0f} MB (at most 300)")
    table.failed |= started > 5 or cpu > 0.03 or above > 300


def await_partitions(db: Client) -> None:
    """Every partition answers, with what it has."""
    for bounds in db.topic(TOPIC).all_bounds():
        if bounds.end != 10:
            raise NotFound(f"expected 10 messages in each partition, found {bounds.end}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of load for each figure")
    parser.add_argument("--only", choices=["rates", "fair", "many"])
    words = parser.parse_args()
    table = Table()
    parts: dict[str, Callable[[], None]] = {
        "rates": lambda: bench_rates(table, words.seconds),
        "fair": lambda: bench_fairness(table, words.seconds),
        "many": lambda: bench_many(table, words.seconds),
    }
    for name, part in parts.items():
        if words.only in (None, name):
            part()
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())

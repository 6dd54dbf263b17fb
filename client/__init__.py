"""The client library, re-exported by `shardnode`: the same methods, plain and awaited.

One rule: it imports only `shardnode.wire`, so an application gets no server with it.

    sync         Client                 engine      … its core, its links, and waiting threads
    aio          AsyncClient            batching    … concurrent calls become one request per shard
    operations, topics                  from a caller's arguments to a call
    calls, many  what a call sends, and what its answers come to
    partition_calls, topic_calls, topic_wishes, group_calls             … about streams
    scans, watches                      pages and changes of all shards as one sequence
    topic        Topic                  topic_aio    AsyncTopic
    consumer     Consumer               consumer_aio AsyncConsumer
    consumers, membership, selection    what a consumer holds, and who says so
    cuts                                consistent cuts of shards, in bulk
    core         the pure core: sends, repeats, gives up; `fates` has its decisions
    exchange, envelopes, sessions, lanes, routes                       … and its parts
    links        the only sockets
    values, messages, arguments, offsets, transactions                  what callers get and pass

Names are loaded when they are first used: a program without an event loop does not pay for asyncio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardnode.client.aio import AsyncClient
    from shardnode.client.consumer import Consumer
    from shardnode.client.consumer_aio import AsyncConsumer
    from shardnode.client.messages import Headers, Message, OutgoingMessage, Position
    from shardnode.client.sync import Client
    from shardnode.client.topic import Topic
    from shardnode.client.topic_aio import AsyncTopic
    from shardnode.client.transactions import Do, If
    from shardnode.client.values import (
        Bounds,
        Change,
        Entry,
        GroupInfo,
        GroupPartition,
        OperationResult,
        Route,
        ShardPlace,
        ShardStatus,
        Status,
        TopicInfo,
        Topology,
        Transaction,
    )
    from shardnode.wire.errors import (
        Compacted,
        Conflict,
        Corrupt,
        DeadlineExceeded,
        Denied,
        InvalidRequest,
        NotFound,
        OutcomeUnknown,
        Overloaded,
        SessionExpired,
        ShardnodeError,
        Unavailable,
    )

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncTopic",
    "Bounds",
    "Change",
    "Client",
    "Compacted",
    "Conflict",
    "Consumer",
    "Corrupt",
    "DeadlineExceeded",
    "Denied",
    "Do",
    "Entry",
    "GroupInfo",
    "GroupPartition",
    "Headers",
    "If",
    "InvalidRequest",
    "Message",
    "NotFound",
    "OperationResult",
    "OutcomeUnknown",
    "OutgoingMessage",
    "Overloaded",
    "Position",
    "Route",
    "SessionExpired",
    "ShardPlace",
    "ShardStatus",
    "ShardnodeError",
    "Status",
    "Topic",
    "TopicInfo",
    "Topology",
    "Transaction",
    "Unavailable",
]

_HOMES = {
    "AsyncConsumer": "shardnode.client.consumer_aio",
    "AsyncTopic": "shardnode.client.topic_aio",
    "Bounds": "shardnode.client.values",
    "Consumer": "shardnode.client.consumer",
    "GroupInfo": "shardnode.client.values",
    "GroupPartition": "shardnode.client.values",
    "Headers": "shardnode.client.messages",
    "Message": "shardnode.client.messages",
    "OutgoingMessage": "shardnode.client.messages",
    "Position": "shardnode.client.messages",
    "Topic": "shardnode.client.topic",
    "TopicInfo": "shardnode.client.values",
    "AsyncClient": "shardnode.client.aio",
    "Client": "shardnode.client.sync",
    "Do": "shardnode.client.transactions",
    "If": "shardnode.client.transactions",
    "Change": "shardnode.client.values",
    "Entry": "shardnode.client.values",
    "OperationResult": "shardnode.client.values",
    "Route": "shardnode.client.values",
    "ShardPlace": "shardnode.client.values",
    "ShardStatus": "shardnode.client.values",
    "Status": "shardnode.client.values",
    "Topology": "shardnode.client.values",
    "Transaction": "shardnode.client.values",
}


def __getattr__(name: str) -> object:
    if name in __all__:
        home = import_module(_HOMES.get(name, "shardnode.wire.errors"))
        value: object = getattr(home, name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

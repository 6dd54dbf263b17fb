"""The client library, re-exported by `shardnode`: the same methods, plain and awaited.

One rule: it imports only `shardnode.wire`, so an application gets no server with it.

    sync         Client                 engine      … its core, its links, and waiting threads
    aio          AsyncClient            batching    … concurrent calls become one request per shard
    operations   from a caller's arguments to a call
    calls, many  what a call sends, and what its answers come to
    scans, watches                      pages and changes of all shards as one sequence
    core         the pure core: sends, repeats, gives up; `fates` has its decisions
    exchange, envelopes, sessions, lanes, routes                       … and its parts
    links        the only sockets
    values, arguments, transactions     what callers get, and what they pass
"""

from shardnode.client.aio import AsyncClient
from shardnode.client.sync import Client
from shardnode.client.transactions import Do, If
from shardnode.client.values import (
    Change,
    Entry,
    OperationResult,
    Route,
    ShardPlace,
    ShardStatus,
    Status,
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
    "Change",
    "Client",
    "Compacted",
    "Conflict",
    "Corrupt",
    "DeadlineExceeded",
    "Denied",
    "Do",
    "Entry",
    "If",
    "InvalidRequest",
    "NotFound",
    "OperationResult",
    "OutcomeUnknown",
    "Overloaded",
    "Route",
    "SessionExpired",
    "ShardPlace",
    "ShardStatus",
    "ShardnodeError",
    "Status",
    "Topology",
    "Transaction",
    "Unavailable",
]

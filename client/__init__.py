"""The client library, re-exported by `shardnode`: the same methods, plain and awaited.

One rule: it imports only `shardnode.wire`, so an application gets no server with it.

    sync         Client                 engine      … its core, its links, and waiting threads
    aio          AsyncClient            batching    … concurrent calls become one request per shard
    operations   from a caller's arguments to a call
    calls, many  what a call sends, and what its answers come to
    scans, watches                      pages and changes of all shards as one sequence
    cuts                                consistent cuts of shards, in bulk
    core         the pure core: sends, repeats, gives up; `fates` has its decisions
    exchange, envelopes, sessions, lanes, routes                       … and its parts
    links        the only sockets
    values, arguments, transactions     what callers get, and what they pass

Names are loaded when they are first used: a program without an event loop does not pay for asyncio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOMES = {
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

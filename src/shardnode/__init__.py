"""shardnode: a sharded, replicated key-value and stream store that installs with pip.

The rooms of the project (`raft/`, `storage/`, `wire/` …) stand at the root of the repository and
are reached through this one package, so that nothing of ours can be shadowed by a user's folder
called `storage` or `cli`.

    from shardnode import Client

    with Client("127.0.0.1:7400") as db:
        db.put(b"user:1", b"Ada")

The public names are loaded when they are first used: importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardnode.client import (
        AsyncClient,
        AsyncConsumer,
        AsyncTopic,
        Bounds,
        Change,
        Client,
        Compacted,
        Conflict,
        Consumer,
        Corrupt,
        DeadlineExceeded,
        Denied,
        Do,
        Entry,
        GroupInfo,
        GroupPartition,
        Headers,
        If,
        InvalidRequest,
        Message,
        NotFound,
        OperationResult,
        OutcomeUnknown,
        OutgoingMessage,
        Overloaded,
        Position,
        Route,
        SessionExpired,
        ShardnodeError,
        ShardPlace,
        ShardStatus,
        Status,
        Topic,
        TopicInfo,
        Topology,
        Transaction,
        Unavailable,
    )

__version__ = "0.1.0"

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
    "__version__",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        value: object = getattr(import_module("shardnode.client"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Forks: what a client does in a child process.

One rule: a child shares nothing with its parent. It opens its own sockets under a new client id,
and never closes or even frees those of its parent.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """A client that may find itself in a child."""

    def after_fork(self) -> None:
        """Forget the parent's sockets and locks."""


_watched: weakref.WeakSet[Forked] = weakref.WeakSet()
_left_behind: list[object] = []


def watch(client: Forked) -> None:
    """Tell a client when it finds itself in a child."""
    _watched.add(client)


def leave_behind(engine: object) -> None:
    """Keep what belongs to the parent from being freed here."""
    if engine is not None:
        _left_behind.append(engine)


def _after_fork() -> None:
    for client in list(_watched):
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork)

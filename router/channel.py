"""Lines between the supervisor and the router: JSON, one object each.

The one rule: the end of standard input means that the supervisor is gone, however it went, and then
the router goes too. Writing never blocks: a line that a busy supervisor has no room for is left
out, since the next one says the same and more.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

LINE_BYTES_MAX = 4 << 20
"""The longest line is a placement table, about 100 KiB."""

READ_BYTES = 64 << 10


class SupervisorGone(Exception):
    """Nobody watches over this process any more."""


class Channel:
    """The two pipes. `listen_fd` becomes readable when a line has come."""

    def __init__(self, listen_fd: int = 0, tell_fd: int = 1) -> None:
        self.listen_fd = listen_fd
        self._tell_fd = tell_fd
        self._partial = b""
        self.lines_left_out = 0

    def first(self) -> bytes:
        """The first line, waiting for it."""
        while b"\n" not in self._partial:
            self._read()
        line, _, self._partial = self._partial.partition(b"\n")
        os.set_blocking(self.listen_fd, False)
        os.set_blocking(self._tell_fd, False)
        return line

    def lines(self) -> list[dict[str, Any]]:
        """What has come since; raises `SupervisorGone` at the end."""
        with suppress(BlockingIOError):
            self._read()
        *whole, self._partial = self._partial.split(b"\n")
        return [json.loads(line) for line in whole if line]

    def tell(self, fields: dict[str, Any]) -> None:
        """Send one line, if there is room. It is shorter than PIPE_BUF, so all of it or nothing."""
        try:
            os.write(self._tell_fd, json.dumps(fields, separators=(",", ":")).encode() + b"\n")
        except BlockingIOError:
            self.lines_left_out += 1
        except BrokenPipeError:
            raise SupervisorGone from None

    def _read(self) -> None:
        chunk = os.read(self.listen_fd, READ_BYTES)
        if not chunk:
            raise SupervisorGone
        self._partial += chunk
        if len(self._partial) > LINE_BYTES_MAX:
            raise ValueError(
                f"expected lines of at most {LINE_BYTES_MAX} bytes, found a longer one"
            )

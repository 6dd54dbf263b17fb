"""The two pipes between a worker and its supervisor: lines of JSON.

The one rule: the supervisor's end closing is the order to exit, at once: it is dead, perhaps by
SIGKILL, and whoever replaces it starts workers of its own.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import orjson

LINE_BYTES_MAX = 4 << 20


class Channel:
    """Standard input and output of a worker."""

    def __init__(self, source: int, sink: int) -> None:
        self.source = source
        self._sink = sink
        self._rest = b""
        os.set_blocking(sink, False)

    def first_line(self) -> bytes:
        """Wait for the settings."""
        os.set_blocking(self.source, True)
        while b"\n" not in self._rest:
            self._read()
        line, _, self._rest = self._rest.partition(b"\n")
        os.set_blocking(self.source, False)
        return line

    def lines(self) -> list[dict[str, Any]]:
        """What has come in since; `SupervisorGone` when nothing ever will again."""
        with contextlib.suppress(BlockingIOError):  # lines may have come together with the first
            self._read()
        *lines, self._rest = self._rest.split(b"\n")
        return [orjson.loads(line) for line in lines]

    def tell(self, report: dict[str, Any]) -> None:
        """Write one line, or drop it when the supervisor does not read: the next one is newer."""
        try:
            os.write(self._sink, orjson.dumps(report) + b"\n")
        except BlockingIOError:
            pass
        except BrokenPipeError:
            raise SupervisorGone from None

    def _read(self) -> None:
        data = os.read(self.source, 1 << 16)
        if not data or len(self._rest) > LINE_BYTES_MAX:
            raise SupervisorGone
        self._rest += data


class SupervisorGone(Exception):
    """Nobody is there to work for."""

"""One child process and the two pipes that lead to it.

Lines are JSON objects, one each. The end of the child's standard input tells it that we are gone,
even if we were killed; so nothing else may hold the writing end, and children are started fresh.

The one rule: nothing here waits. Reading takes what is there; a line that finds the pipe full is
kept, one per topic and only the newest, until the child reads again. So a child that hangs costs
neither memory nor time.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import orjson

ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
}
"""glibc gives buffers of more than 128 KiB back to the system as soon as they are free, and takes
them again, page by page, for the next request: 30 us of each 100 KB. Children keep them instead, up
to the second size. Who starts the node may say otherwise."""

LINE_BYTES_MAX = 4 << 20
"""A child that sends more without an end of line is broken."""

READ_BYTES = 64 << 10


class BrokenLine(Exception):
    """A child said something that is not a line of ours."""


class Child:
    """A started process. Only the thread that starts it uses it: on Linux a child may be told to
    die with the thread that started it, so that thread has to live as long as the child."""

    def __init__(
        self,
        command: Sequence[str],
        first_line: dict[str, Any],
        *,
        pass_fds: Sequence[int] = (),
        stderr: int | None = None,
    ) -> None:
        # A group of its own: an interrupt from the terminal is for the supervisor alone.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            pass_fds=pass_fds,
            process_group=0,
            env={**ENVIRONMENT, **os.environ},
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.write_fd = self._process.stdin.fileno()
        self.read_fd = self._process.stdout.fileno()
        os.set_blocking(self.write_fd, False)
        os.set_blocking(self.read_fd, False)
        self.exit_fd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        self._partial = b""
        self._unsent = b""
        self._waiting: dict[str, bytes] = {}
        self.ended_output = False
        self.send("first", first_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def lines(self) -> list[dict[str, Any]]:
        """What it said since the last call; raises `BrokenLine`."""
        while True:
            try:
                chunk = os.read(self.read_fd, READ_BYTES)
            except BlockingIOError:
                break
            if not chunk:
                self.ended_output = True
                break
            self._partial += chunk
            if len(self._partial) > LINE_BYTES_MAX:
                self._partial = b""
                raise BrokenLine(f"more than {LINE_BYTES_MAX} bytes without an end of line")
            if len(chunk) < READ_BYTES:
                break
        *whole, self._partial = self._partial.split(b"\n")
        return [_decode(line) for line in whole if line]

    def send(self, topic: str, line: dict[str, Any]) -> None:
        """Say something; a line of the same topic that still waits is replaced."""
        self._waiting[topic] = orjson.dumps(line) + b"\n"
        self.flush()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent or self._waiting)

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        while self.has_unsent:
            if not self._unsent:
                topic = next(iter(self._waiting))
                self._unsent = self._waiting.pop(topic)
            try:
                written = os.write(self.write_fd, self._unsent)
            except BlockingIOError:
                return
            except BrokenPipeError:  # it is dead or dying, which is noticed elsewhere
                self._unsent = b""
                self._waiting.clear()
                return
            self._unsent = self._unsent[written:]

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        """Safe at any time: its number is not given away before we have taken its exit code."""
        self._process.kill()

    def close(self) -> int:
        """Take the exit code of a process that has ended or was killed, and close the pipes."""
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        if self.exit_fd is not None:
            os.close(self.exit_fd)
        return code


def _decode(line: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise BrokenLine(f"expected a JSON object, found {line[:80]!r}")
    return fields

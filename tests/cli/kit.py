"""The real command in a process of its own: its streams, its exit code, its signals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

COMMAND = (sys.executable, "-P", "-m", "shardnode")
READY = re.compile(rb"^ready: (\d+) shards on (\S+)$", re.MULTILINE)
PATIENCE_S = 60.0
ANY_PORTS = ("--listen", "127.0.0.1:0")

Word = str | bytes


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's, without what a developer may have set for a node or a terminal of their own.
    Python's own buffering stays as users have it: a pipe that breaks is noticed late."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHARDNODE_")}
    for name in ("NO_COLOR", "FORCE_COLOR", "PYTHONUNBUFFERED"):
        kept.pop(name, None)
    return {**kept, **(more or {})}


def run(
    *words: Word, stdin: bytes = b"", env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """One command line, to its end."""
    return subprocess.run(
        [*COMMAND, *words],
        input=stdin,
        capture_output=True,
        env=environment(env),
        cwd=cwd,
        timeout=PATIENCE_S,
    )


def error_of(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    """The one object on stderr."""
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1
    told = json.loads(done.stderr)
    assert told.keys() == {"error"}
    assert told["error"].keys() == {"code", "message", "retryable"}
    error: dict[str, Any] = told["error"]
    return error


class Running:
    """A command that runs while a test looks at it; ends with the block."""

    def __init__(
        self, *words: Word, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(env),
            cwd=cwd,
        )
        self.out = self.err = b""
        self._threads = [
            threading.Thread(target=self._read, args=(name,), daemon=True)
            for name in ("out", "err")
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, name: str) -> None:
        pipe = self.process.stdout if name == "out" else self.process.stderr
        assert pipe is not None
        while chunk := os.read(pipe.fileno(), 65536):
            setattr(self, name, getattr(self, name) + chunk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.end()

    def until(self, condition: Callable[[Self], Any]) -> Any:
        """The first true value; an assertion if the command ends before, or it takes too long."""
        give_up_at = time.monotonic() + PATIENCE_S
        while not (value := condition(self)):
            ended = self.process.poll() is not None
            assert not ended or condition(self), f"it ended with {self.process.returncode}: {self}"
            assert time.monotonic() < give_up_at, f"it takes too long: {self}"
            time.sleep(0.01)
        return value

    def ready(self) -> tuple[int, str]:
        """(shards, address) of the ready line."""
        found = self.until(lambda self: READY.search(self.err))
        return int(found[1]), found[2].decode()

    def signal(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> int:
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        for thread in self._threads:
            thread.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        return code

    def __repr__(self) -> str:
        return f"stdout {self.out!r}, stderr {self.err.decode(errors='replace')}"


def run_on_terminal(
    words: Sequence[Word], *, which: str, env: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """A command with stdout or stderr on a terminal; its exit code and what was shown there."""
    ours, theirs = pty.openpty()
    streams: dict[str, int] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    streams[which] = theirs
    process = subprocess.Popen(
        [*COMMAND, *words],
        stdin=subprocess.DEVNULL,
        stdout=streams["stdout"],
        stderr=streams["stderr"],
        env=environment({"TERM": "xterm-256color", **(env or {})}),
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # Linux's way to say that nobody holds the other side any more
        pass
    finally:
        os.close(ours)
    return process.wait(PATIENCE_S), shown

"""What clients asked and saw: recorded while it happens, saved as JSON lines, judged afterwards.

    recorder = Recorder()
    operation = recorder.begin(process=3, kind="put", key=b"k", shard=0, value=b"3-17")
    operation.ok(version=db.put(b"k", b"3-17"))        # or .failed(), .unknown(), .conflict(9)
    recorder.save(path)

The one rule: only what is certain is written down. `failed` means that it had no effect; whatever
may have had one, or may yet have it, is `unknown`.

Every value is written once in a history, by one operation, so that a value tells who wrote it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from shardnode.client import (
    Conflict,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Overloaded,
    ShardnodeError,
    Unavailable,
)

NO_EFFECT = (Unavailable, DeadlineExceeded, Overloaded, InvalidRequest, NotFound)
"""Errors that promise it."""

KINDS = ("put", "get", "cas", "swap", "delete")
WRITES = ("put", "cas", "swap", "delete")


@dataclass(slots=True)
class Operation:
    """One operation on one key. Times are nanoseconds of one monotonic clock.

    kind     writes            and sees
    put      value
    get                        seen, seen_version
    cas      value             expected, expected_version; after a conflict seen_version
    swap     value             seen_version, seen if it is told: reads and writes in one step
    delete   that it is gone   seen_version, seen if it is told; or only whether it `existed`
    """

    process: int
    kind: str
    key: bytes
    shard: int = 0
    value: bytes | None = None
    expected: bytes | None = None
    expected_version: int | None = None
    invoked_ns: int = 0
    returned_ns: int | None = None
    """When the caller got an answer, or an error."""
    status: str = "unknown"
    """ok, conflict (a cas that found another version), failed (had no effect), unknown."""
    version: int | None = None
    """Of what it wrote: the log index on its shard."""
    seen: bytes | None = None
    """The value that it found; None: there was none, or its value was not told."""
    seen_version: int | None = None
    """Of what it found: 0 is nothing, None is not known."""
    existed: bool | None = None
    """All that a plain delete tells."""

    def ok(
        self,
        version: int | None = None,
        *,
        seen: bytes | None = None,
        seen_version: int | None = None,
        existed: bool | None = None,
    ) -> None:
        """It was answered."""
        self._returned("ok")
        self.version, self.seen = version, seen
        self.seen_version, self.existed = seen_version, existed

    def conflict(self, found: int | None) -> None:
        """A cas that found another version."""
        self._returned("conflict")
        self.seen_version = found

    def failed(self) -> None:
        """It certainly had no effect."""
        self._returned("failed")

    def unknown(self) -> None:
        """It may have had its effect, or may yet have it."""
        self._returned("unknown")

    def ended_with(self, error: ShardnodeError) -> None:
        """What this error of the client library means."""
        if isinstance(error, Conflict):
            self.conflict(error.version)
        elif isinstance(error, NO_EFFECT) or self.kind == "get":
            self.failed()
        else:
            self.unknown()

    def _returned(self, status: str) -> None:
        self.status = status
        self.returned_ns = time.monotonic_ns()

    @property
    def ended_ns(self) -> float:
        """When its effect was certainly over; never, while that is unknown."""
        if self.returned_ns is None or self.status == "unknown":
            return float("inf")
        return self.returned_ns

    @property
    def is_write(self) -> bool:
        return self.kind in WRITES

    def __str__(self) -> str:
        said = f"process {self.process} {self.kind} {self.key!r}"
        if self.value is not None:
            said += f" = {self.value!r}"
        if self.expected_version is not None:
            said += f" if version {self.expected_version}"
        said += f": {self.status}"
        if self.version is not None:
            said += f" at {self.version}"
        if self.seen_version is not None:
            said += f", saw {self.seen!r} of {self.seen_version}"
        ended = "" if self.returned_ns is None else f"{self.returned_ns / 1e6:.3f}"
        return f"{said} [{self.invoked_ns / 1e6:.3f} … {ended} ms]"


class Recorder:
    """Collects operations of any number of threads and tasks."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def begin(self, process: int, kind: str, key: bytes, **about: Any) -> Operation:
        """Call it before the request leaves. An operation that never ends is unknown."""
        operation = Operation(process, kind, key, **about)
        operation.invoked_ns = time.monotonic_ns()
        self.operations.append(operation)
        return operation

    def save(self, path: Path) -> None:
        """Write everything recorded so far."""
        save(self.operations, path)


def save(operations: Iterable[Operation], path: Path) -> None:
    """One line for each operation. Bytes are written as Latin-1, which has a sign for each."""
    with path.open("w", encoding="utf-8") as file:
        for operation in operations:
            values = {
                name: value.decode("latin-1") if isinstance(value, bytes) else value
                for name, value in asdict(operation).items()
            }
            file.write(json.dumps(values) + "\n")


_BYTES = tuple(field.name for field in fields(Operation) if "bytes" in str(field.type))


def load(path: Path) -> list[Operation]:
    """The inverse of `save`."""
    operations = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            values = json.loads(line)
            for name in _BYTES:
                if values[name] is not None:
                    values[name] = values[name].encode("latin-1")
            operations.append(Operation(**values))
    return operations

"""`Proxy`: starts the process of `proxy.py` and tells it what to do.

The one rule: a command is in force when its call returns.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import asdict
from typing import Any, Self

from shardnode.testing.proxy_stream import Faults

STOP_S = 5.0


class Proxy:
    """Links between named ends, for tests of anything that speaks ZeroMQ over TCP.

    with Proxy() as proxy:
        proxy.route("1>2", ("127.0.1.2", 7602), ("127.0.0.2", 7602))
        proxy.set("1>2", Faults(drop=0.1))
        proxy.set("1>2", Faults(cut=True), side="back")
        proxy.heal()
    """

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "shardnode.testing.proxy", str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # An interrupt of the terminal is for the test, which then stops the proxy.
            process_group=0,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def route(self, name: str, listen: tuple[str, int], target: tuple[str, int]) -> None:
        """Forward what connects to `listen`; several routes may share a name."""
        self._do("route", name=name, listen=list(listen), target=list(target))

    def set(self, name: str, faults: Faults, *, side: str = "out") -> None:
        """What is wrong with a link from now on: `out` is what those who connect send."""
        self._do("set", name=name, side=side, faults=asdict(faults))

    def refuse(self, name: str) -> None:
        """Reset the connections of a link and refuse new ones until `heal`."""
        self._do("refuse", name=name)

    def reset(self, name: str) -> None:
        """Reset the connections of a link once."""
        self._do("reset", name=name)

    def heal(self) -> None:
        """Nothing is wrong any more, anywhere."""
        self._do("heal")

    def counts(self) -> dict[str, int]:
        """How many messages came, and how many were dropped, duplicated and corrupted."""
        return self._do("counts")

    def guard(self, pid: int) -> None:
        """Kill this process and its children should ours end without `close`."""
        self._do("guard", pid=pid)

    def _do(self, do: str, **fields: Any) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with self._lock:
            stdin.write(json.dumps({"do": do, **fields}) + "\n")
            stdin.flush()
            line = stdout.readline()
        if not line:
            raise RuntimeError(f"the proxy (process {self.pid}) has ended; see stderr")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"the proxy could not {do} {fields}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

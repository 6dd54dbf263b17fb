"""One node of a cluster under test: its processes, and what can be done to them.

The one rule: signals go through process handles that survive the reuse of ids, and only to what
this node started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from shardnode.client import Client, ShardStatus, Status, Unavailable
from shardnode.storage.failpoints import VARIABLE as FAILPOINTS_VARIABLE

STOP_S = 30.0
VANISH_S = 10.0
"""How long workers may take to notice that their supervisor is gone."""


class NodeFailed(AssertionError):
    """A node did not do what every node must do; the message ends with its log."""


class ClusterNode:
    """`shardnode start`, with a configuration file and a log of its own."""

    def __init__(
        self, node_id: int, address: str, folder: Path, started: Callable[[int], None]
    ) -> None:
        self.id = node_id
        self.address = address
        self.data = folder / f"n{node_id}"
        self.config = folder / f"n{node_id}.toml"
        self.log_file = folder / f"n{node_id}.log"
        self.http = "off"
        """Where it serves HTTP from its next start on."""
        self.failpoints = ""
        """What fails in its workers from its next start on: see `storage/failpoints.py`."""
        self._started = started
        self._process: subprocess.Popen[bytes] | None = None
        self._family: list[psutil.Process] = []
        """The processes that are stopped by `pause`."""
        self._log_begins = 0

    # Looking at it.

    @property
    def is_running(self) -> bool:
        """Whether its supervisor runs (a paused one does)."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_paused(self) -> bool:
        return bool(self._family)

    @property
    def log(self) -> str:
        """Everything that the node has written to stderr, over all its starts."""
        if not self.log_file.exists():
            return ""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    @property
    def is_ready(self) -> bool:
        """Whether it has said so since its last start."""
        return "\nready: " in "\n" + self.log[self._log_begins :]

    def status(self, timeout: float = 2.0) -> Status:
        """How the shards of this very node are; raises `Unavailable` while it does not answer."""
        with Client(self.address, timeout=timeout) as client:
            found = client.status()
        if found.node_id != self.id:
            raise Unavailable(f"node {self.id} does not answer")
        return found

    def shard(self, shard: int) -> ShardStatus:
        """How one of its shards is."""
        return next(each for each in self.status().shards if each.id == shard)

    def processes(self) -> list[psutil.Process]:
        """The supervisor and everything it started."""
        if not self.is_running:
            return []
        assert self._process is not None
        try:
            supervisor = psutil.Process(self._process.pid)
            return [supervisor, *supervisor.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    # Doing things to it.

    def launch(self) -> None:
        """Start its processes, without waiting."""
        assert not self.is_running, f"node {self.id} runs already"
        self._log_begins = len(self.log)
        words = ["start", "--config", str(self.config), "--node-id", str(self.id)]
        words += ["--data", str(self.data), "--http", self.http]
        environ = {k: v for k, v in os.environ.items() if not k.startswith("SHARDNODE_")}
        if self.failpoints:
            environ[FAILPOINTS_VARIABLE] = self.failpoints
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "shardnode", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
                # An interrupt is for the test, which then stops us. Not a session of its own: Linux
                # shares a busy core among sessions, and would let a worker wait for seconds there
                # whose node has more to do on another core.
                process_group=0,
            )
        self._started(self._process.pid)

    def start(self, timeout: float = 30.0) -> None:
        """Start it, and wait until it says that it is ready."""
        self.launch()
        self.wait_ready(timeout)

    def wait_ready(self, timeout: float = 30.0) -> None:
        """Until it has said `ready` since its last start."""
        deadline = time.monotonic() + timeout
        while not self.is_ready:
            if not self.is_running:
                assert self._process is not None
                raise self._failed(f"ended with code {self._process.poll()} before it was ready")
            if time.monotonic() > deadline:
                raise self._failed(f"was not ready within {timeout} s")
            time.sleep(0.02)

    def stop(self) -> int:
        """SIGTERM, and its exit code; 0 is a clean stop."""
        self.resume()
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the supervisor. Its workers have to notice that by themselves, unless they
        are paused: then they are killed too."""
        paused = list(self._family)
        self._end(signal.SIGKILL)
        for process in paused:
            _send(process, signal.SIGKILL)
        self._family = []

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        family = self.processes()
        if self.is_running:
            self._process.send_signal(number)
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise self._failed(f"ran on for {STOP_S} s after {number.name}") from None
        left = _wait_gone([] if self.is_paused else family[1:])
        for process in left:
            _send(process, signal.SIGKILL)
        if left:
            raise self._failed(f"left {left} behind after {number.name}")
        return code

    def kill_worker(self, shard: int) -> None:
        """SIGKILL to the worker of one shard; the supervisor starts another."""
        self._to_worker(shard, signal.SIGKILL)

    def pause_worker(self, shard: int) -> None:
        """SIGSTOP to the worker of one shard; the supervisor will replace it as one that hangs."""
        self._to_worker(shard, signal.SIGSTOP)

    def _to_worker(self, shard: int, number: signal.Signals) -> None:
        pid = self.shard(shard).pid
        for process in self.processes():
            if process.pid == pid:
                _send(process, number)
                return
        raise NodeFailed(f"node {self.id} has no process {pid} for shard {shard}")

    def pause(self) -> None:
        """SIGSTOP to all its processes: for the others it hangs."""
        self._family = self.processes()
        for process in self._family:
            _send(process, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to what `pause` stopped."""
        family, self._family = self._family, []
        for process in reversed(family):
            _send(process, signal.SIGCONT)

    def erase(self) -> None:
        """End it whatever state it is in, and do not complain."""
        family = [*self._family, *self.processes()]
        for process in family:
            _send(process, signal.SIGKILL)
        _wait_gone(family)
        self._family = []
        if self._process is not None:
            self._process.wait()

    def _failed(self, what: str) -> NodeFailed:
        tail = "\n".join(self.log.splitlines()[-30:])
        return NodeFailed(f"node {self.id} {what}; its log ends with\n{tail}")


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _wait_gone(family: list[psutil.Process]) -> list[psutil.Process]:
    """Who is left after a while. A zombie has let go of everything: whoever inherited it may take
    its time to look at it."""
    deadline = time.monotonic() + VANISH_S
    while (left := [each for each in family if not _is_gone(each)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.01)
    return left


def _is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True

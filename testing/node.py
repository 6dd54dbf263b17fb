"""A real node for the time of a test: its processes, its files, and ways to trouble it.

    with NodeUnderTest(shards=4) as node:
        with node.client() as db: ...
        node.kill(2)                        # SIGKILL to the worker of shard 2
        node.wait_ready()

The router and the workers are processes as in production. The supervisor is a thread of the test,
so a test that is killed takes all of them with it.

The one rule: nothing is left behind. Ports are free ones, files are in a folder of their own, and
leaving the block ends every process, however the block was left.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from shardnode.client import Client
from shardnode.node.config import Config, Sharding
from shardnode.node.config_kinds import Address
from shardnode.node.handle import READY_TIMEOUT_S
from shardnode.node.handle import Node as Handle

LOG = "node.log"
NOTICE_S = 5.0
"""How long the supervisor may take to notice a death; it takes milliseconds."""


class NodeUnderTest:
    """One node. `address` is what clients connect to."""

    def __init__(
        self, shards: int = 1, *, folder: Path | None = None, config: Config | None = None
    ) -> None:
        """Nothing is started yet. Without a `folder` there is a temporary one, which goes at the
        end. `config` is for settings besides shards, folder and ports, which are decided here.
        """
        self._is_ours = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="shardnode-"))
        self.shards = shards
        base = config or Config()
        self._config = replace(
            base,
            node=replace(base.node, data=self.folder / "data", listen=Address("127.0.0.1", 0)),
            sharding=Sharding(enabled=shards > 1, shards=shards),
        )
        self._handle: Handle | None = None
        self._log_fd = -1

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """`host:port` of the router. It stays the same over `stop` and `start`."""
        return str(self._config.node.listen)

    @property
    def http(self) -> str:
        """`http://host:port` of health and metrics."""
        ports = self._running.ports
        return f"http://{ports.http}" if ports is not None and ports.http is not None else ""

    @property
    def data(self) -> Path:
        """The data directory."""
        return self._config.node.data

    @property
    def log(self) -> str:
        """What the processes have written to stderr so far."""
        path = self.folder / LOG
        return path.read_text(errors="replace") if path.exists() else ""

    def client(self, **options: Any) -> Client:
        """A new client of this node; close it, or use it in a `with`."""
        return Client(self.address, **options)

    def status(self) -> dict[str, Any]:
        """As `shardnode status --json` shows it."""
        return self._running.status()

    def pid(self, shard: int) -> int | None:
        """The process of a shard; None while there is none."""
        found: int | None = next(
            row["pid"] for row in self.status()["shards"] if row["id"] == shard
        )
        return found

    def kill(self, shard: int) -> None:
        """SIGKILL to the worker of a shard. The supervisor has noticed when this returns, and
        starts another; `wait_ready` waits for it."""
        pid = self.pid(shard)
        if pid is None:
            return
        os.kill(pid, signal.SIGKILL)
        supervisor = self._running.supervisor
        assert supervisor is not None
        with supervisor.changed:
            supervisor.changed.wait_for(lambda: self.pid(shard) != pid, NOTICE_S)

    def wait_ready(self, timeout: float = READY_TIMEOUT_S) -> None:
        """Wait until every shard serves; `Unavailable` says what is missing."""
        self._running.wait_ready(timeout)

    def start(self) -> None:
        """Start it, also again after `stop`, and wait until it serves."""
        assert self._handle is None, "it runs already"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._log_fd = os.open(self.folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._handle = Handle(self._config, stderr=self._log_fd)
        try:
            self._handle.start()
            self._handle.wait_ready()
        except BaseException:
            self.stop()
            raise
        listen = self._handle.address
        self._config = replace(self._config, node=replace(self._config.node, listen=listen))

    def stop(self) -> None:
        """Stop it cleanly; its files stay. The second call does nothing."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            handle.shutdown()
            os.close(self._log_fd)

    def close(self) -> None:
        """Stop it and remove its folder, unless that was given."""
        self.stop()
        if self._is_ours:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _running(self) -> Handle:
        assert self._handle is not None, "the node is not running; call start()"
        return self._handle

"""A node as a program holds it: start, wait until it is ready, look, shut down.

    with Node(config) as node:          # starts
        node.wait_ready()
        ...                             # real processes; talk to node.address
                                        # leaving the block stops them cleanly

`shardnode start` does the same with `run_forever`, which ends with SIGTERM or SIGINT.

The one rule: a `Node` owns everything it started. Whichever way it goes, by `shutdown`, by a failed
start or by being killed, its processes end, its ports are free and its directory is unlocked.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import psutil
from setproctitle import setproctitle

from shardnode.node.affinity import allowed_cpus, assign_cores
from shardnode.node.config import PORT_DEFAULT, Config
from shardnode.node.config_kinds import Address
from shardnode.node.config_load import Loaded
from shardnode.node.http import HttpServer, Pages
from shardnode.node.identity import (
    DataDirectory,
    DirectoryInUse,
    claim_of,
    open_directory,
    open_node_directory,
    read_identity,
)
from shardnode.node.joining import add_member, ask_cluster, fit_in
from shardnode.node.members import FILE as MEMBERS_FILE
from shardnode.node.members import Members
from shardnode.node.ports import Ports, choose_ports, endpoint, numeric
from shardnode.node.supervisor import ROUTER, Patience, Post, Supervisor
from shardnode.node.supervisor_run import RunFolder
from shardnode.wire.errors import InvalidRequest, ShardnodeError, Unavailable

log = logging.getLogger("shardnode.node")

WORKER_COMMAND = (sys.executable, "-P", "-m", "shardnode.shard")
ROUTER_COMMAND = (sys.executable, "-P", "-m", "shardnode.router")

READY_TIMEOUT_S = 30.0
HURRY_AFTER_S = 1.0
ORPHANS_TIMEOUT_S = 3.0
"""How long the workers of a node that was killed may take to notice it."""


class Node:
    """One node: a supervisor in a thread of its own, and the processes it watches over."""

    def __init__(
        self,
        config: Config | Loaded,
        *,
        worker_command: Sequence[str] = WORKER_COMMAND,
        router_command: Sequence[str] = ROUTER_COMMAND,
        patience: Patience | None = None,
        stderr: int | None = None,
    ) -> None:
        """Nothing happens yet. A `Loaded` configuration is also written down next to the data.

        The other arguments are for tests: programs that stand in for ours, less patience, and a
        file that gets what the children log.
        """
        self._loaded = config if isinstance(config, Loaded) else None
        self.config = config.config if isinstance(config, Loaded) else config
        self._commands = (worker_command, router_command)
        self._patience = patience or Patience(
            hang_s=self.config.node.hang_timeout_ms / 1_000,
            stop_s=self.config.node.stop_timeout_ms / 1_000,
        )
        self._stderr = stderr
        self._directory: DataDirectory | None = None
        self._members: Members | None = None
        self._run_folder: RunFolder | None = None
        self._http: HttpServer | None = None
        self._thread: threading.Thread | None = None
        self.supervisor: Supervisor | None = None
        self.ports: Ports | None = None

    def __enter__(self) -> Node:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def start(self) -> None:
        """Lock the directory, find the ports and start the processes; returns before they serve.

        Raises `PortTaken`, `DirectoryInUse` and others of `identity`; nothing is left behind then.
        """
        if self.supervisor is not None:
            raise InvalidRequest("expected a node that was not started yet; make a new one")
        _refuse_what_is_not_there_yet(self.config)
        at = self.config.join_address
        identity = read_identity(self.config.node.data) if at is not None else None
        cluster = None
        if at is not None and (identity is None or identity.cluster_id is None):
            cluster = ask_cluster(at)
            self.config = fit_in(self.config, cluster)
        elif identity is not None:
            self.config = self.config.with_shards(identity.shards)
        try:
            self._directory = self._open_directory()
            self.ports = choose_ports(self.config)
            self._members = self._known_members(self.ports, self._directory)
            if at is not None and cluster is not None:
                self._members.routers |= cluster.routers
                add_member(at, self.config.node.id, self._own_router(self.ports))
                self._directory.learn_cluster_id(cluster.cluster_id)
            self._run_folder = RunFolder()
            self.supervisor = Supervisor(
                self._posts(self.ports, self._directory, self._run_folder),
                self._patience,
                members=self._members,
                stderr=self._stderr,
            )
            if self.ports.http is not None:
                pages = Pages(self.config.node.id, lambda: self._watched.view)
                self._http = HttpServer(self.ports.http, pages, self.config.http.threads)
        except BaseException:
            self._let_go()
            raise
        self._thread = threading.Thread(
            target=self.supervisor.run, name="shardnode-supervisor", daemon=True
        )
        self._thread.start()

    def wait_ready(self, timeout: float = READY_TIMEOUT_S) -> None:
        """Wait until every local shard serves with a leader, and the router does.

        Raises `Unavailable` when the time is over, a shard is parked or the node has stopped; the
        message says what is missing.
        """
        watched = self._watched
        until = time.monotonic() + timeout
        with watched.changed:
            while watched.view.missing:
                missing = "; ".join(watched.view.missing)
                if watched.has_ended:
                    raise Unavailable(f"the node has stopped: {missing}") from watched.failure
                if watched.view.parked:
                    raise Unavailable(f"{missing}; see the lines above for why")
                left_s = until - time.monotonic()
                if left_s <= 0:
                    raise Unavailable(f"not ready after {timeout:g} s: {missing}")
                watched.changed.wait(left_s)

    def run_forever(self) -> int:
        """Start if need be, say when ready, and serve until SIGTERM or SIGINT; returns 0.

        For the main thread, which alone can catch signals. Another signal hurries the stop, unless
        it comes at once: some senders signal both a process and its group. Afterwards these signals
        are ignored: the program is about to end.
        """
        if self.supervisor is None:
            self.start()
        watched = self._watched
        setproctitle(f"shardnode: supervisor node {self.config.node.id}")
        signals = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            signals.append(signal.SIGHUP)
        asked_at: list[float] = []

        def ask(*_: object) -> None:
            asked_at.append(time.monotonic())
            watched.ask_to_stop(at_once=asked_at[-1] - asked_at[0] > HURRY_AFTER_S)

        for each in signals:
            signal.signal(each, ask)
        try:
            self._announce(watched)
            with watched.changed:
                while not watched.has_ended:
                    watched.changed.wait()
        finally:
            self.shutdown()
            for each in signals:  # one more must not spoil the exit code now
                signal.signal(each, signal.SIG_IGN)
        if watched.failure is not None:
            raise ShardnodeError(f"the supervisor failed: {watched.failure}") from watched.failure
        return 0

    def shutdown(self) -> None:
        """Stop all shards cleanly, waiting for them; the second call does nothing."""
        if self.supervisor is not None and self._thread is not None:
            self.supervisor.ask_to_stop()
            self._thread.join()
        self._let_go()

    def primary_shard(self) -> int:
        """The shard that legacy clients and the cluster's control belong to."""
        return 0

    def shard_count(self) -> int:
        """Shards of the whole cluster."""
        return self.config.shard_count

    def local_shard_ids(self) -> tuple[int, ...]:
        """Shards of this node."""
        return self.config.local_shard_ids

    def status(self) -> dict[str, Any]:
        """As `shardnode status --json` shows it."""
        view = self._watched.view
        return {
            "node_id": self.config.node.id,
            "cluster": self.config.cluster.name,
            "epoch": view.epoch,
            "shards": [dict(row) for row in view.rows],
        }

    @property
    def address(self) -> Address:
        """Where clients connect; the real port, also when any was asked for."""
        if self.ports is None:
            raise InvalidRequest("expected a started node, found one that was not; call start()")
        return self.ports.listen

    def ready_text(self) -> str:
        """The ready line, and lines to copy."""
        address = self.address
        shards = f"{len(self.local_shard_ids())} shards"
        if out := self._watched.view.out_of_service:
            shards = f"{len(self.local_shard_ids()) - len(out)} of {shards} ({'; '.join(out)})"
        default = address == Address("127.0.0.1", PORT_DEFAULT)
        to = "" if default else f" --connect {address}"
        lines = [
            f"ready: {shards} on {address}",
            f"  put      shardnode kv put greeting hello{to}",
            f"  get      shardnode kv get greeting{to}",
            f"  status   shardnode status{to}",
        ]
        if self.ports is not None and self.ports.http is not None:
            lines.append(f"  console  http://{self.ports.http}/")
        lines.append(f"  stop     Ctrl-C here, or kill {os.getpid()}")
        return "".join(f"{line}\n" for line in lines)

    @property
    def _watched(self) -> Supervisor:
        if self.supervisor is None:
            raise InvalidRequest("expected a started node, found one that was not; call start()")
        return self.supervisor

    def _announce(self, watched: Supervisor) -> None:
        """The ready line, once, however long it takes; nothing if the node stops before. Who is
        fenced is named in it and not waited for."""
        with watched.changed:
            while not watched.view.serves and not watched.has_ended:
                watched.changed.wait()
            if not watched.view.serves:
                return
        sys.stderr.write(self.ready_text())
        sys.stderr.flush()

    def _open_directory(self) -> DataDirectory:
        """Workers of a node that was killed hold its lock for a moment longer."""
        until = time.monotonic() + ORPHANS_TIMEOUT_S
        while True:
            try:
                if self._loaded is not None:
                    return open_node_directory(replace(self._loaded, config=self.config))
                return open_directory(self.config.node.data, claim_of(self.config))
            except DirectoryInUse as error:
                alive = error.pid is None or psutil.pid_exists(error.pid)
                if alive or time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def _posts(self, ports: Ports, directory: DataDirectory, run: RunFolder) -> list[Post]:
        """What every process is started with: the router first, for it is ready soonest."""
        config = self.config
        first = config.node.id - 1 if isinstance(config.node.cpus, str) else 0
        cores = assign_cores(config.local_shard_ids, config.node.cpus, allowed_cpus(), first)
        members = self._members
        assert members is not None
        routers = {str(node): router for node, router in members.routers.items()}
        siblings = {str(shard): run.ipc(shard) for shard in config.local_shard_ids}
        # A shard that has no files yet may found its group only with those that were there first.
        others = {*members.routers} - {config.node.id}
        joins = bool(others) and len(config.cluster.peers) < 2
        worker_command, router_command = self._commands
        advertised = config.advertised.host
        shared = {
            "node": config.node.id,
            "cluster": config.cluster.name,
            "shards": config.shard_count,
            "limits": asdict(config.limits),
            "cluster_id": directory.identity.cluster_id,
            "nodes": routers,
        }
        router_line = {
            **shared,
            "listen": endpoint(numeric(ports.listen)),
            "advertise": self._own_router(ports),
            "workers": siblings,
            "direct": {
                str(shard): endpoint(Address(advertised, address.port))
                for shard, address in ports.direct.items()
            },
        }
        posts = [Post(ROUTER, router_command, router_line)]
        for shard in config.local_shard_ids:
            line = {
                **shared,
                "shard": shard,
                "directory": str(directory.shard_path(shard).absolute()),
                "direct": endpoint(numeric(ports.direct[shard])),
                "ipc": run.ipc(shard),
                "siblings": siblings,
                "peer_listen": endpoint(numeric(ports.peers[shard])),
                "nodes_version": members.version,
                "founders": [peer.id for peer in config.cluster.peers],
                "joins": joins,
                "core": cores[shard],
                "engine": config.storage.engine,
                "raft": asdict(config.raft),
                "storage": asdict(config.storage),
            }
            name = f"shard-{shard}"
            lock = (directory.lock_fd,)
            posts.append(Post(name, worker_command, line, shard, cores[shard], pass_fds=lock))
        return posts

    def _own_router(self, ports: Ports) -> str:
        """What others are told to connect to."""
        return endpoint(Address(self.config.advertised.host, ports.listen.port))

    def _known_members(self, ports: Ports, directory: DataDirectory) -> Members:
        """The addresses in the configuration, and what was written down of the others."""
        own = {peer.id: endpoint(peer.address) for peer in self.config.cluster.peers}
        own.setdefault(self.config.node.id, self._own_router(ports))
        return Members(directory.path / MEMBERS_FILE, own)

    def _let_go(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None
        if self._run_folder is not None:
            self._run_folder.close()
            self._run_folder = None
        if self._directory is not None:
            self._directory.close()
            self._directory = None


def _refuse_what_is_not_there_yet(config: Config) -> None:
    several = len(config.cluster.peers) > 1 or config.join_address is not None
    if several and len(config.local_shard_ids) != config.shard_count:
        raise InvalidRequest(
            "sharding.local_shards: nodes of a cluster hold all its shards for now; leave it out"
        )

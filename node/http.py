"""Health and metrics over HTTP, for people, load balancers and Prometheus.

    /livez     200 while the supervisor answers
    /readyz    200 when every local shard serves with a leader; 503 says which do not
    /metrics   Prometheus text: the children's counters by shard, and what the supervisor sees
    /          the shards, one line each

The one rule: nothing here changes anything or asks a worker. It shows the supervisor's last view,
so it answers while every worker hangs.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psutil
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from waitress.server import create_server  # type: ignore[import-untyped]
from waitress.wasyncore import loop as serve_sockets  # type: ignore[import-untyped]

from shardnode.node.config_kinds import Address
from shardnode.node.supervisor import ProcessView, View
from shardnode.node.supervisor_policy import INDEXES, STATES

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Answer = tuple[str, str, bytes]
"""Status, content type, body."""

TEXT = "text/plain; charset=utf-8"
IDLE_S = 5.0
MEMORY_AGE_S = 10.0
"""Summing up a process's own pages costs milliseconds, so it is done this often at most."""

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")


class Pages:
    """What is answered to which path; a WSGI application."""

    def __init__(self, node_id: int, look: Callable[[], View]) -> None:
        self._look = look
        self._registry = CollectorRegistry()
        self._registry.register(NodeCollector(node_id, look))
        self._pages: dict[str, Callable[[], Answer]] = {
            "/": self.overview,
            "/livez": self.live,
            "/readyz": self.ready,
            "/metrics": self.metrics,
        }

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> list[bytes]:
        page = self._pages.get(environ.get("PATH_INFO", "/"))
        if page is None:
            status, kind, body = "404 Not Found", TEXT, b"not found\n"
        elif environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            status, kind, body = "405 Method Not Allowed", TEXT, b"only GET\n"
        else:
            status, kind, body = page()
        start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]

    def live(self) -> Answer:
        return "200 OK", TEXT, b"ok\n"

    def ready(self) -> Answer:
        missing = self._look().missing
        if missing:
            return "503 Service Unavailable", TEXT, _lines(missing)
        return "200 OK", TEXT, b"ok\n"

    def metrics(self) -> Answer:
        return "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._registry)

    def overview(self) -> Answer:
        view = self._look()
        lines = [
            f"shard {row['id']}: {row['state']}, {row['role']}, leader {row['leader']}, term"
            f" {row['term']}, commit {row['commit_index']}, restarts {row['restarts']}"
            for row in view.rows
        ]
        return "200 OK", TEXT, _lines([*lines, "see also /livez /readyz /metrics"])


class NodeCollector(Collector):
    """The supervisor's view as metrics, made anew for every scrape."""

    def __init__(self, node_id: int, look: Callable[[], View]) -> None:
        self._node_id = node_id
        self._look = look
        self._memory: dict[int, int] = {}
        self._memory_at = float("-inf")

    def describe(self) -> Iterable[Metric]:
        return []  # unknown before the workers have spoken

    def collect(self) -> Iterator[Metric]:
        view = self._look()
        yield from self._of_processes(view)
        yield from _of_shards(view)
        yield from _of_counters(view)

    def _of_processes(self, view: View) -> Iterator[Metric]:
        up = GaugeMetricFamily("shardnode_up", "Whether the process serves.", labels=["process"])
        restarts = CounterMetricFamily(
            "shardnode_restarts", "Starts after the first.", labels=["process"]
        )
        hangs = CounterMetricFamily(
            "shardnode_hangs", "Kills because of silence.", labels=["process"]
        )
        silent = GaugeMetricFamily(
            "shardnode_silent_seconds", "Since the last sign of life.", labels=["process"]
        )
        memory = GaugeMetricFamily(
            "shardnode_memory_bytes", "Memory that is the process's alone.", labels=["process"]
        )
        sizes = self._memory_of(view.processes)
        for each in view.processes:
            up.add_metric([each.name], float(each.state == "serving"))
            restarts.add_metric([each.name], each.restarts)
            hangs.add_metric([each.name], each.hangs)
            silent.add_metric([each.name], each.silent_s)
            if each.pid in sizes:
                memory.add_metric([each.name], sizes[each.pid])
        node = GaugeMetricFamily("shardnode_node_info", "This node.", labels=["node"])
        node.add_metric([str(self._node_id)], 1)
        epoch = GaugeMetricFamily("shardnode_epoch", "Of the placement table.", value=view.epoch)
        ready = GaugeMetricFamily("shardnode_ready", "As /readyz.", value=float(not view.missing))
        yield from (up, restarts, hangs, silent, memory, node, epoch, ready)

    def _memory_of(self, processes: Iterable[ProcessView]) -> dict[int, int]:
        now = time.monotonic()
        pids = {each.pid for each in processes if each.pid is not None}
        if now - self._memory_at > MEMORY_AGE_S or not pids <= self._memory.keys():
            found = ((pid, memory_of_process(pid)) for pid in pids)
            self._memory = {pid: size for pid, size in found if size is not None}
            self._memory_at = now
        return self._memory


def memory_of_process(pid: int) -> int | None:
    """Bytes that only this process holds; None if it is gone or not ours to look at."""
    try:
        process = psutil.Process(pid)
        try:
            return int(process.memory_full_info().uss)
        except psutil.AccessDenied:
            return int(process.memory_info().rss)
    except psutil.Error:
        return None


def _of_shards(view: View) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "shardnode_shard_state", "1 for the state it is in.", labels=["shard", "state"]
    )
    leads = GaugeMetricFamily(
        "shardnode_shard_leads", "Whether this node leads the shard.", labels=["shard"]
    )
    numbers = {
        name: GaugeMetricFamily(f"shardnode_{name}", f"As in status: {name}.", labels=["shard"])
        for name in INDEXES
    }
    for row in view.rows:
        shard = str(row["id"])
        for each in STATES:
            state.add_metric([shard, each], float(row["state"] == each))
        leads.add_metric([shard], float(row["role"] == "leader"))
        for name, family in numbers.items():
            family.add_metric([shard], row[name])
    yield from (state, leads, *numbers.values())


def _of_counters(view: View) -> Iterator[Metric]:
    """The children's own counters. A name that ends in `_total` or belongs to the router and grows
    is a counter; everything else is shown as it is, a gauge."""
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for process in view.processes:
        group = "router" if process.shard is None else "shard"
        labels = [] if process.shard is None else ["shard"]
        values = [] if process.shard is None else [str(process.shard)]
        for name, value in process.counters.items():
            full = f"shardnode_{group}_{_NOT_IN_NAMES.sub('_', name)}"
            if full not in families:
                family = CounterMetricFamily if full.endswith("_total") else GaugeMetricFamily
                families[full] = family(full, f"As the {group} counts it.", labels=labels)
            families[full].add_metric(values, value)
    yield from families.values()


class HttpServer:
    """The pages on a port, served by a thread of their own until `close`."""

    def __init__(self, address: Address, pages: Pages, threads: int) -> None:
        logging.getLogger("waitress").setLevel(logging.ERROR)
        self._sockets: dict[int, Any] = {}
        self._server = create_server(
            pages,
            map=self._sockets,
            host=address.host,
            port=address.port,
            threads=threads,
            ident=None,
            asyncore_use_poll=True,
        )
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="shardnode-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and give the port back."""
        self._closing = True
        self._server.pull_trigger()
        self._thread.join()

    def _serve(self) -> None:
        while not self._closing:
            serve_sockets(timeout=IDLE_S, use_poll=True, map=self._sockets, count=1)
        self._server.task_dispatcher.shutdown()
        self._server.close()
        for each in list(self._sockets.values()):
            each.close()


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()

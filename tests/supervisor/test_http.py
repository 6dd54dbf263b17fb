"""Health and metrics over HTTP, from a real node with fake workers."""

from __future__ import annotations

import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shardnode.node.handle import Node
from shardnode.node.http import Pages, memory_of_process
from shardnode.node.ports import is_free
from shardnode.node.supervisor import View
from tests.supervisor.kit import fake_node, row, until


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with fake_node(tmp_path_factory.mktemp("http") / "data", http=True) as running:
        running.wait_ready()
        yield running


def get(node: Node, path: str, method: str = "GET") -> tuple[int, str]:
    assert node.ports is not None
    request = urllib.request.Request(f"http://{node.ports.http}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(node: Node) -> dict[tuple[str, ...], float]:
    """Metric name and label values → value; a parser of Prometheus's own reads the text."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(get(node, "/metrics")[1])
        for sample in family.samples
    }


def test_live_and_ready(node: Node) -> None:
    assert get(node, "/livez") == (200, "ok\n")
    assert get(node, "/readyz") == (200, "ok\n")
    assert "shard 1: serving" in get(node, "/")[1]


@pytest.mark.parametrize("path", ["/nothing", "/livez/", "/metrics2", "/%2e%2e/etc"])
def test_other_paths_are_not_found(node: Node, path: str) -> None:
    assert get(node, path)[0] == 404


def test_only_reading_is_allowed(node: Node) -> None:
    assert get(node, "/livez", "POST")[0] == 405
    assert get(node, "/livez", "HEAD") == (200, "")


def test_metrics_have_counters_by_shard_and_what_the_supervisor_sees(node: Node) -> None:
    found = samples(node)
    for shard in ("0", "1"):
        assert found["shardnode_shard_requests_total", shard] == 3
        assert found["shardnode_shard_odd_name_", shard] == 2
        assert found["shardnode_commit_index", shard] == 5
        assert found["shardnode_shard_state", shard, "serving"] == 1
        assert found["shardnode_shard_state", shard, "parked"] == 0
    for process in ("router", "shard-0", "shard-1"):
        assert found["shardnode_up", process] == 1
        assert found["shardnode_memory_bytes", process] > 1 << 20
    assert "shardnode_router_requests" in {name for name, *_ in found}
    assert found["shardnode_ready",] == 1


def test_dead_worker_is_not_ready_and_counted(node: Node) -> None:
    pid = row(node, 1)["pid"]
    os.kill(pid, signal.SIGSTOP)  # it hangs, so the supervisor kills it
    until(lambda: get(node, "/readyz")[0] == 503)
    assert get(node, "/livez")[0] == 200
    until(lambda: get(node, "/readyz")[0] == 200)
    found = samples(node)
    assert found["shardnode_restarts_total", "shard-1"] == 1
    assert found["shardnode_hangs_total", "shard-1"] == 1


def test_not_ready_says_which_shard() -> None:
    pages = Pages(1, lambda: View(missing=("shard 3 is parked",)))
    status, _, body = pages.ready()
    assert (status[:3], body) == ("503", b"shard 3 is parked\n")


def test_port_is_given_back(tmp_path: Path) -> None:
    with fake_node(tmp_path / "data", http=True) as node:
        assert node.ports is not None
        address = node.ports.http
        assert get(node, "/livez")[0] == 200
    assert address is not None
    assert is_free(address)


def test_memory_of_nobody_is_unknown() -> None:
    assert memory_of_process(2**22 + 1) is None

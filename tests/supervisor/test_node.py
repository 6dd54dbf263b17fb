"""A node of real processes whose workers are fakes: they crash, hang, and refuse to stop."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from shardnode.node.config_kinds import Address
from shardnode.node.handle import Node
from shardnode.node.identity import DirectoryInUse
from shardnode.node.ports import PortTaken
from shardnode.node.supervisor_policy import Pace
from shardnode.wire.cluster import StatusFound, TopologyFound
from shardnode.wire.errors import InvalidRequest, Unavailable
from shardnode.wire.frames import PLACE_FOR_ME, build_request
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import PlacementTable
from shardnode.wire.replies import decode_error
from shardnode.wire.requests import Status, Topology
from tests.supervisor.kit import (
    ask,
    config_for,
    echo,
    fake_node,
    impatient,
    is_gone,
    pids,
    row,
    until,
)


def test_node_starts_serves_and_stops_without_a_trace(tmp_path: Path) -> None:
    node = fake_node(tmp_path / "data", shards=3)
    node.start()
    node.wait_ready()
    assert (node.primary_shard(), node.shard_count()) == (0, 3)
    assert node.local_shard_ids() == (0, 1, 2)
    status = node.status()
    assert (status["node_id"], status["cluster"], status["epoch"]) == (1, "main", 1)
    assert [each["state"] for each in status["shards"]] == ["serving"] * 3
    for shard in range(3):
        assert echo(node.address, shard).shard == shard
    processes = pids(node)
    node.shutdown()
    node.shutdown()  # does nothing
    assert all(is_gone(pid) for pid in processes)
    with fake_node(tmp_path / "data", shards=3) as again:  # the directory is free again
        again.wait_ready()


def test_status_over_the_wire_is_that_of_the_handle(tmp_path: Path) -> None:
    with fake_node(tmp_path / "data") as node:
        node.wait_ready()
        request = build_request(Kind.STATUS, Status().encode(), prefix=PLACE_FOR_ME)

        def seen() -> StatusFound | None:
            found = StatusFound.decode(ask(node.address, request).body)
            return found if "starting" not in found.states else None

        found: StatusFound = until(seen)
        rows = node.status()["shards"]
        assert list(found.pids) == [each["pid"] for each in rows]
        assert list(found.cores) == [each["core"] for each in rows]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no pinning here")
def test_workers_are_pinned_within_our_own_mask(tmp_path: Path) -> None:
    with fake_node(tmp_path / "data") as node:
        node.wait_ready()
        cpus = sorted(os.sched_getaffinity(0))
        for shard in (0, 1):
            core = cpus[shard % len(cpus)]
            assert row(node, shard)["core"] == core
            assert os.sched_getaffinity(row(node, shard)["pid"]) == {core}


def test_killed_worker_comes_back_alone(tmp_path: Path) -> None:
    with fake_node(tmp_path / "data") as node:
        node.wait_ready()
        before = [row(node, shard)["pid"] for shard in (0, 1)]
        os.kill(before[1], signal.SIGKILL)
        until(lambda: row(node, 1)["restarts"] == 1)
        assert echo(node.address, 0).shard == 0
        node.wait_ready()
        assert row(node, 0)["pid"] == before[0]
        assert row(node, 1)["pid"] != before[1]
        assert echo(node.address, 1).shard == 1


def test_killed_router_comes_back_and_the_workers_stay(tmp_path: Path) -> None:
    with fake_node(tmp_path / "data") as node:
        node.wait_ready()
        assert node.supervisor is not None
        before = pids(node)
        os.kill(before[0], signal.SIGKILL)
        until(lambda: node.supervisor and node.supervisor.view.processes[0].restarts == 1)
        node.wait_ready()
        assert pids(node)[1:] == before[1:]
        assert echo(node.address, 1).shard == 1


def test_worker_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    with fake_node(tmp_path / "data", patience=impatient(hang_s=1.0)) as node:
        node.wait_ready()
        pid = row(node, 1)["pid"]
        os.kill(pid, signal.SIGSTOP)
        until(lambda: row(node, 1)["restarts"] == 1)
        assert is_gone(pid)
        node.wait_ready()
        assert node.supervisor is not None
        assert node.supervisor.view.processes[2].hangs == 1


def test_crash_loop_is_parked_and_the_rest_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    brief = impatient(pace=Pace(delay_s_min=0.01, delay_s_max=0.02, deaths_max=4))
    with fake_node(tmp_path / "data", "crash:1", patience=brief) as node:
        with pytest.raises(Unavailable, match="shard 1 is parked"):
            node.wait_ready()
        assert (row(node, 1)["pid"], row(node, 1)["restarts"]) == (None, 3)
        assert "PARKED" in caplog.text
        assert "exited with 7" in caplog.text
        until(lambda: echo(node.address, 0).shard == 0)

        def refusal() -> str:
            return decode_error(echo(node.address, 1).body).message

        assert until(lambda: "parked" in refusal())
        assert row(node, 0)["restarts"] == 0


def test_node_without_a_leader_is_not_ready(tmp_path: Path) -> None:
    with (
        fake_node(tmp_path / "data", "leaderless:1") as node,
        pytest.raises(Unavailable, match="shard 1 has no leader"),
    ):
        node.wait_ready(timeout=1.5)


def test_fenced_shard_is_shown_and_the_node_is_not_ready(tmp_path: Path) -> None:
    with fake_node(tmp_path / "data", "fenced:1") as node:
        until(lambda: row(node, 1)["state"] == "fenced")
        with pytest.raises(Unavailable, match="shard 1 is fenced"):
            node.wait_ready(timeout=0.5)
        assert row(node, 1)["restarts"] == 0


def test_strange_words_of_a_worker_are_logged_and_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with fake_node(tmp_path / "data", "chatty:0") as node:
        node.wait_ready()
        assert "something strange" in caplog.text


def test_placement_table_of_shard_0_reaches_the_router(tmp_path: Path) -> None:
    with fake_node(tmp_path / "data", "table:0") as node:
        node.wait_ready()
        request = build_request(Kind.TOPOLOGY, Topology().encode(), prefix=PLACE_FOR_ME)

        def epoch() -> int:
            found = TopologyFound.decode(ask(node.address, request).body)
            return PlacementTable.decode(found.table).epoch

        until(lambda: epoch() == 9)
        assert node.status()["epoch"] == 9


def test_worker_that_will_not_stop_is_killed_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = fake_node(tmp_path / "data", "deaf:1", patience=impatient(stop_s=1.0))
    node.start()
    node.wait_ready()
    processes = pids(node)
    begun = time.monotonic()
    node.shutdown()
    assert 0.9 < time.monotonic() - begun < 4.0
    assert all(is_gone(pid) for pid in processes)
    assert "shard-1" in caplog.text
    assert "did not stop" in caplog.text
    assert "shard-0" not in caplog.text


def test_stop_during_start_and_during_backoff_is_clean(tmp_path: Path) -> None:
    fresh = fake_node(tmp_path / "fresh")
    fresh.start()
    fresh.shutdown()
    slow = impatient(pace=Pace(delay_s_min=30.0, delay_s_max=30.0))
    node = fake_node(tmp_path / "data", "crash:1", patience=slow)
    node.start()
    until(lambda: row(node, 1)["restarts"] == 1 and row(node, 1)["pid"] is None)
    begun = time.monotonic()
    node.shutdown()
    assert time.monotonic() - begun < 4.0


def test_program_that_cannot_be_started_does_not_stop_the_node(tmp_path: Path) -> None:
    missing = (str(tmp_path / "no-such-program"),)
    with fake_node(tmp_path / "data", router_command=missing) as node:
        until(lambda: row(node, 0)["state"] == "serving")
        with pytest.raises(Unavailable, match="router"):
            node.wait_ready(timeout=0.5)


def test_second_node_on_the_directory_is_refused_and_the_first_is_not_disturbed(
    tmp_path: Path,
) -> None:
    with fake_node(tmp_path / "data") as first:
        first.wait_ready()
        with pytest.raises(DirectoryInUse, match=str(os.getpid())):
            fake_node(tmp_path / "data").start()
        assert echo(first.address, 0).shard == 0


def test_failed_start_leaves_nothing_behind(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen(1)
        config = config_for(tmp_path / "data")
        address = Address("127.0.0.1", holder.getsockname()[1])
        object.__setattr__(config.node, "listen", address)
        with pytest.raises(PortTaken):
            Node(config).start()
    with fake_node(tmp_path / "data") as node:  # the lock was let go of
        node.wait_ready()


def test_handle_before_start_says_so(tmp_path: Path) -> None:
    node = fake_node(tmp_path / "data")
    for use in (lambda: node.address, node.status, node.wait_ready):
        with pytest.raises(InvalidRequest, match="started"):
            use()
    node.shutdown()


def test_ready_text_has_lines_to_copy(tmp_path: Path) -> None:
    with fake_node(tmp_path / "data", http=True) as node:
        lines = node.ready_text().splitlines()
        assert lines[0] == f"ready: 2 shards on {node.address}"
        for word in ("put", "get", "status", "console", "stop"):
            assert any(line.startswith(f"  {word} ") for line in lines)
        assert f"--connect {node.address}" in lines[1]


def test_idle_supervisor_sleeps(tmp_path: Path) -> None:
    with fake_node(tmp_path / "data") as node:
        node.wait_ready()
        assert node._thread is not None
        assert node._thread.ident is not None
        clock = time.pthread_getcpuclockid(node._thread.ident)
        before = time.clock_gettime(clock)
        time.sleep(2.0)  # the time measured over, not a wait for something
        # The fakes speak ten times a second; a busy loop would use all of the two seconds.
        assert time.clock_gettime(clock) - before < 0.1

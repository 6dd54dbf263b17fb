"""`shardnode start`: the ready line, clean ends, and refusals that say what to do."""

from __future__ import annotations

import fcntl
import json
import re
import signal
import socket
import sys
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from tests.cli.kit import ANY_PORTS, Running, error_of, run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_node_serves_until_a_signal_and_ends_with_0(number: signal.Signals, tmp_path: Path) -> None:
    with Running("start", "--shards", "2", "--data", "d", *ANY_PORTS, cwd=tmp_path) as node:
        shards, address = node.ready()
        assert shards == 2
        children = psutil.Process(node.process.pid).children(recursive=True)
        assert len(children) == 3
        assert run("kv", "put", "k", "v", "--connect", address).returncode == 0
        assert node.signal(number) == 0
    assert node.out == b""
    assert b"Traceback" not in node.err
    assert not psutil.wait_procs(children, timeout=5)[1]
    with Running("start", "--shards", "2", "--data", "d", *ANY_PORTS, cwd=tmp_path) as node:
        _, address = node.ready()
        assert run("kv", "get", "k", "--connect", address).stdout == b"v"


def test_lines_to_copy_follow_the_ready_line(tmp_path: Path) -> None:
    with Running("start", "--data", str(tmp_path / "d"), *ANY_PORTS) as node:
        shards, address = node.ready()
        assert shards == 1
        node.until(lambda each: b"stop " in each.err)
        lines = node.err.decode().splitlines()
        assert f"ready: 1 shards on {address}" in lines
        for name in ("put", "get", "status"):
            line = next(line for line in lines if line.split()[0] == name)
            words = line.split()[2:]
            assert run(*words).returncode == 0, line
        console = next(line for line in lines if line.split()[0] == "console").split()[1]
        with urlopen(f"{console}readyz", timeout=10) as page:
            assert page.status == 200
        stop = next(line for line in lines if line.split()[0] == "stop")
        assert stop.endswith(f"kill {node.process.pid}")


def test_signal_before_it_is_ready_is_a_clean_end_too(tmp_path: Path) -> None:
    with Running("start", "--shards", "4", "--data", str(tmp_path / "d"), *ANY_PORTS) as node:
        node.until(lambda each: psutil.Process(each.process.pid).children())
        assert node.signal(signal.SIGTERM) == 0
    assert b"Traceback" not in node.err


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the signals that are caught")
def test_signal_before_any_process_runs_is_a_clean_end_too(tmp_path: Path) -> None:
    words = ("start", "--data", str(tmp_path / "d"), *ANY_PORTS)
    with Running(*words) as node:
        node.ready()
    gone = node.process.pid
    with open(tmp_path / "d" / "LOCK", "w") as lock:
        # As a worker does that outlives its killed supervisor: the next start waits for it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{gone}\n")
        lock.flush()
        with Running(*words) as node:
            node.until(lambda each: catches(each.process.pid, signal.SIGTERM))
            assert node.signal(signal.SIGTERM) == 0
    assert node.err == b""


def catches(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(re.search(r"^SigCgt:\s+(\w+)", status, re.MULTILINE)[1], 16)  # type: ignore[index]
    return bool(mask >> (number - 1) & 1)


def test_port_that_is_taken_names_its_holder_and_a_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ("start", "--data", str(tmp_path / "d"), "--listen", listen)
        done = run(*words)
        assert (done.returncode, done.stdout) == (4, b"")
        assert f"process {psutil.Process().pid}".encode() in done.stderr
        assert b"--listen 127.0.0.1:0" in done.stderr
        assert error_of(run(*words, "--json"))["code"] == "unavailable"


def test_directory_of_another_count_names_both_numbers(tmp_path: Path) -> None:
    words = ("start", "--data", str(tmp_path / "d"), *ANY_PORTS)
    with Running(*words, "--shards", "2") as node:
        node.ready()
    for more, count in (("--shards", "3"), 3), ((), 1):
        done = run(*words, *more)
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"number of shards 2" in done.stderr
        assert f"found {count} ".encode() in done.stderr
        assert f"reshard --to {count}".encode() in done.stderr
        assert b"--data" in done.stderr


def test_second_node_on_a_directory_is_refused(tmp_path: Path) -> None:
    words = ("start", "--data", str(tmp_path / "d"), *ANY_PORTS)
    with Running(*words) as node:
        node.ready()
        done = run(*words)
        assert (done.returncode, done.stdout) == (1, b"")
        assert f"process {node.process.pid}".encode() in done.stderr


def test_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"")
    done = run("start", "--data", str(tmp_path), *ANY_PORTS)
    assert done.returncode == 2
    assert b"photo.jpg" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["photo.jpg"]


@pytest.mark.parametrize(
    "words",
    [
        ["--shards", "none"],
        ["--shards", "101"],
        ["--listen", "nowhere"],
        ["--config", "none.toml"],
        ["--nonsense"],
        ["word"],
    ],
)
def test_bad_settings_end_with_2_and_make_nothing(words: list[str], tmp_path: Path) -> None:
    done = run("start", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Error: " in done.stderr
    assert [*tmp_path.iterdir()] == []


def test_bad_file_is_told_as_one_object(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text("[sharding]\nshrads = 4\n")
    error = error_of(run("--json", "start", "--config", "node.toml", cwd=tmp_path))
    assert "node.toml:2" in error["message"]
    assert "did you mean `shards`" in error["message"]


def test_settings_come_from_file_environment_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[node]\nid = 7\ndata = "d"\n[sharding]\nshards = 4\n[cluster]\nname = "c"\n')
    words = ("start", "--config", str(file), *ANY_PORTS, "--shards", "2", "--http", "off")
    with Running(*words, env={"SHARDNODE_NODE_ID": "8"}) as node:
        shards, address = node.ready()
        status = json.loads(run("status", "--json", "--connect", address).stdout)
        node.until(lambda each: b"stop " in each.err)
    assert shards == 2
    assert (status["node_id"], status["cluster"], len(status["shards"])) == (8, "c", 2)
    assert (tmp_path / "d" / "node.json").exists()
    assert b"console" not in node.err


def test_memory_engine_is_loud(tmp_path: Path) -> None:
    environ = {"SHARDNODE_STORAGE_ENGINE": "memory"}
    with Running("start", "--data", str(tmp_path / "d"), *ANY_PORTS, env=environ) as node:
        node.until(lambda each: re.search(rb"WARNING .* GONE when this node stops", each.err))

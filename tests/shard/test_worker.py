"""One real worker process: it serves, survives SIGKILL, follows its supervisor, fences damage."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from shardnode.wire.errors import Corrupt
from shardnode.wire.kinds import Kind
from shardnode.wire.replies import Found, Written
from shardnode.wire.requests import Get, GetMany, Put, PutMany
from tests.shard.process import WorkerProcess, worker


def fill(process: WorkerProcess, batches: int, size: int = 100) -> None:
    for batch in range(batches):
        keys = [b"%d/%d" % (batch, n) for n in range(200)]
        process.ask(Kind.PUT_MANY, PutMany(keys, [b"v" * size] * len(keys)))


def check_filled(process: WorkerProcess, batches: int, size: int = 100) -> None:
    for batch in range(batches):
        keys = [b"%d/%d" % (batch, n) for n in range(200)]
        assert process.ask(Kind.GET_MANY, GetMany(keys)) == Found([b"v" * size] * len(keys))


def test_everything_acknowledged_survives_kill_9_again_and_again() -> None:
    with worker(storage={"table_bytes": 100_000}) as process:
        process.start()
        for round_ in range(1, 5):
            fill(process, 5 * round_)
            process.kill()
            process.start()
            check_filled(process, 5 * round_)


def test_clean_stop_leaves_nothing_to_redo() -> None:
    with worker() as process:
        process.start()
        fill(process, 5)
        process.up.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        line = process.start()
        assert line["applied_index"] >= line["commit_index"] - 1
        check_filled(process, 5)


def test_worker_ends_when_its_supervisor_is_gone() -> None:
    with worker() as process:
        process.start()
        assert process.up.stdin is not None
        process.up.stdin.close()
        assert process.up.wait(3) == 0


def test_stop_line_is_a_clean_stop_and_interrupts_are_the_supervisors_business() -> None:
    with worker() as process:
        process.start()
        process.up.send_signal(signal.SIGINT)
        assert isinstance(process.ask(Kind.PUT, Put(b"a", b"1")), Written)
        assert process.up.stdin is not None
        process.up.stdin.write(b'{"stop": true}\n')
        process.up.stdin.flush()
        assert process.up.wait(5) == 0


def test_damaged_log_fences_the_shard_and_says_why_to_everybody() -> None:
    with worker(storage={"segment_bytes": 1 << 16}) as process:
        process.start()
        fill(process, 30)
        process.kill()
        log = process.folder / "shard-0" / "log"
        segment = sorted(log.glob("*.seg"))[-2]
        data = bytearray(segment.read_bytes())
        data[len(data) // 3] ^= 1
        segment.write_bytes(data)
        line = process.start()
        assert line["state"] == "fenced"
        assert segment.name in line["error"]
        with pytest.raises(Corrupt, match=segment.name):
            process.ask(Kind.GET, Get(b"0/0"))


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no pinning on this system")
def test_worker_is_pinned_and_says_so_in_its_title() -> None:
    core = min(os.sched_getaffinity(0))
    with worker(core=core) as process:
        process.start()
        assert os.sched_getaffinity(process.up.pid) == {core}
        title = " ".join(psutil.Process(process.up.pid).cmdline())
        assert f"shard 0 node 1 core {core}" in title


def test_idle_worker_is_small() -> None:
    with worker() as process:
        process.start()
        uss = psutil.Process(process.up.pid).memory_full_info().uss
        assert uss < 80_000_000

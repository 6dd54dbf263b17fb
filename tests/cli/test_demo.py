"""`shardnode demo`: a worker dies and comes back, nothing is lost, nothing is left."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import psutil
import pytest

from tests.cli.kit import Running, run


def test_demo_tells_the_story_and_cleans_up(tmp_path: Path) -> None:
    done = run("demo", "--shards", "2", env={"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": ""})
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    story = done.stdout.decode()
    before, shard = re.search(r"SIGKILL to process (\d+), the worker of shard (\d)", story).groups()  # type: ignore[union-attr]
    back = re.search(rf"shard {shard} serves again, as process (\d+)", story)
    assert back is not None
    assert back[1] != before
    assert re.search(rf"shards {1 - int(shard)} went on: \d+ reads", story)
    assert "of 1000 acknowledged keys, 0 were lost" in story
    assert not psutil.pid_exists(int(back[1]))
    assert [*tmp_path.iterdir()] == []


def test_demo_in_json_is_one_object(tmp_path: Path) -> None:
    done = run("demo", "--shards", "2", "--json", env={"TMPDIR": str(tmp_path)})
    told = json.loads(done.stdout)
    assert (told["keys"], told["lost"]) == (1_000, 0)
    assert told["outage"]["answers"] > 0
    assert told["outage"]["pid_before"] != told["outage"]["pid_after"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_demo_that_is_cut_short_cleans_up(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    environ = {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": ""}
    with Running("demo", "--shards", "2", env=environ) as demo:
        demo.until(lambda each: each.out.startswith(b"1."))
        children = psutil.Process(demo.process.pid).children(recursive=True)
        assert demo.signal(number) == code
    assert not psutil.wait_procs(children, timeout=5)[1]
    assert b"Traceback" not in demo.err
    assert [*tmp_path.iterdir()] == []

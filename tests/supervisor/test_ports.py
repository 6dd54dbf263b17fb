"""Ports: the layout, any free ones, and who has one that is taken."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shardnode.node.config import Http
from shardnode.node.config_kinds import Address
from shardnode.node.ports import PortTaken, choose_ports, is_free, numeric
from shardnode.node.supervisor_run import LOCK, PREFIX, RunFolder
from shardnode.wire.errors import Unavailable
from tests.supervisor.kit import LOOPBACK, config_for


@pytest.fixture
def taken() -> Iterator[Address]:
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))
        holder.listen(1)
        yield Address(LOOPBACK, holder.getsockname()[1])


def test_any_port_gives_a_whole_layout_that_is_free(tmp_path: Path) -> None:
    ports = choose_ports(config_for(tmp_path, shards=3, http=True))
    base = ports.listen.port
    assert base
    assert ports.http == Address(LOOPBACK, base + 80)
    assert [each.port for each in ports.direct.values()] == [base + 100, base + 101, base + 102]
    assert [each.port for each in ports.peers.values()] == [base + 200, base + 201, base + 202]
    assert all(is_free(address) for _, address in ports.purposes())


def test_http_can_be_off_or_elsewhere(tmp_path: Path, taken: Address) -> None:
    config = config_for(tmp_path)
    assert choose_ports(config).http is None
    elsewhere = Address(LOOPBACK, taken.port + 1)
    if is_free(elsewhere):
        assert choose_ports(replace(config, http=Http(listen=elsewhere))).http == elsewhere


def test_host_that_is_not_ours_is_said_so(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    foreign = replace(config, node=replace(config.node, listen=Address("203.0.113.1", 0)))
    with pytest.raises(Unavailable, match="check the host"):
        choose_ports(foreign)


@pytest.mark.parametrize("offset", [0, 80, 101, 200])
def test_taken_port_names_its_holder_and_the_way_out(tmp_path: Path, offset: int) -> None:
    config = config_for(tmp_path, http=True)
    base = choose_ports(config).listen  # others may hold some of the ports around any other
    config = replace(config, node=replace(config.node, listen=base))
    with (
        socket.create_server((LOOPBACK, base.port + offset)),
        pytest.raises(PortTaken) as caught,
    ):
        choose_ports(config)
    assert caught.value.pid == os.getpid()
    assert str(base.port + offset) in caught.value.message
    assert f"process {os.getpid()}" in caught.value.message
    assert f"--listen {LOOPBACK}:0" in caught.value.message


def test_port_beyond_the_last_is_not_free() -> None:
    assert not is_free(Address(LOOPBACK, 65_536))


def test_host_name_becomes_a_number() -> None:
    assert numeric(Address("localhost", 7400)).host in ("127.0.0.1", "::1")
    with pytest.raises(Unavailable, match="no-such-host"):
        numeric(Address("no-such-host.invalid", 7400))


def test_run_folder_is_private_short_and_goes_away() -> None:
    folder = RunFolder()
    try:
        assert folder.path.stat().st_mode & 0o777 == 0o700
        assert len(folder.ipc(99).removeprefix("ipc://")) <= 107
    finally:
        folder.close()
    assert not folder.path.exists()


def test_folder_of_a_node_that_was_killed_is_swept_and_that_of_a_live_one_is_not(
    tmp_path: Path,
) -> None:
    live = RunFolder(tmp_path)
    (dead := tmp_path / f"{PREFIX}dead").mkdir()
    (dead / LOCK).touch()
    (young := tmp_path / f"{PREFIX}young").mkdir()
    (young / LOCK).touch()
    for folder in (live.path, dead):
        os.utime(folder, (0, 0))
    second = RunFolder(tmp_path)
    assert live.path.exists()
    assert young.exists()
    assert not dead.exists()
    second.close()
    live.close()

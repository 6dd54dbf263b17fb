"""What `verify` says of whole directories: sound ones, damaged ones, and what crashes leave."""

from __future__ import annotations

import fcntl
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from shardnode.node.identity import (
    IDENTITY,
    LOCK,
    DirectoryInUse,
    decode_identity,
    encode_identity,
)
from shardnode.offline.verify import Verdict, verify
from shardnode.storage.segment import SEGMENT_HEADER_BYTES
from shardnode.storage.superblock import COPIES, decode_superblock, encode_superblock
from shardnode.testing.verify_flips import KINDS, Result, flip_everywhere
from shardnode.wire.errors import NotFound
from tests.offline.kit import ShardWriter, flip, write_node


def found(verdict: Verdict) -> dict[str, str]:
    """File → what is wrong with it."""
    return {finding.path: finding.what for finding in verdict.damage}


def tree(data: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in data.rglob("*") if path.is_file()}


def segments(data: Path, shard: str = "shard-1") -> list[Path]:
    return sorted((data / shard / "log").glob("*.seg"))


def test_sound_directory_is_sound_and_stays_as_it_is(sound: Path) -> None:
    before = tree(sound)
    verdict = verify(sound)
    assert (verdict.damage, verdict.notes) == ([], [])
    assert [shard.name for shard in verdict.shards] == ["shard-0", "shard-1"]
    shard = verdict.shards[1]
    assert (shard.log_first, shard.log_last, shard.applied) == (1, shard.commit, shard.commit)
    assert (shard.keys, shard.partitions, shard.snapshots) == (243, 1, 1)
    assert tree(sound) == before


def test_flip_in_any_kind_of_file_is_found_there(data: Path) -> None:
    result = Result()
    flip_everywhere(data, 12, Random(5), result)
    assert result.problems == []
    assert result.found == dict.fromkeys(KINDS, 12)
    assert verify(data).is_sound, "every byte was changed back"


def test_every_bit_of_a_superblock_counts(data: Path) -> None:
    path = data / "shard-0" / COPIES[1]
    for offset in range(0, 512, 37):
        flip(path, offset, 1 << offset % 8)
        assert found(verify(data)).keys() == {f"shard-0/{COPIES[1]}"}
        flip(path, offset, 1 << offset % 8)


def test_damage_is_told_with_place_and_meaning_and_the_rest_is_looked_at(data: Path) -> None:
    flip(segments(data, "shard-0")[2], SEGMENT_HEADER_BYTES + 150)
    flip(data / "shard-1" / COPIES[0], 9)
    verdict = verify(data)
    log, superblock = verdict.damage
    assert log.path == "shard-0/log/00000000000000000003.seg"
    assert log.offset == SEGMENT_HEADER_BYTES
    assert "does not match its checksum" in log.what
    assert "are lost here" in log.means
    assert superblock.path == "shard-1/superblock.a"
    assert "the next start writes this one again" in superblock.means


# -- what crashes leave -------------------------------------------------------------------------


def killed(data: Path) -> Path:
    """A shard whose last entries are in the log alone, and not known to be committed."""
    data.mkdir()
    writer = ShardWriter(data)
    writer.fill()
    writer.flush()
    for number in range(3):
        writer.put({b"last/%d" % number: b"x" * 200})
    writer.close(clean=False)
    return segments(data)[-1]


def test_torn_write_is_sound_at_whatever_byte(tmp_path: Path) -> None:
    last = killed(tmp_path / "data")
    content = last.read_bytes()
    used = len(content.rstrip(b"\0"))
    for cut in range(used - 300, used, 23):
        last.write_bytes(content[:cut].ljust(len(content), b"\0"))
        assert verify(tmp_path / "data" / "shard-1").is_sound


def test_log_that_ends_below_what_was_flushed_is_damage(tmp_path: Path) -> None:
    """Effects in LMDB prove that it was longer."""
    killed(tmp_path / "data")
    while len(kept := segments(tmp_path / "data")) > 3:
        kept[-1].unlink()
    verdict = verify(tmp_path / "data" / "shard-1")
    (finding,) = verdict.damage
    assert finding.path == f"shard-1/log/{kept[2].name}"
    assert f"it must reach index {verdict.shards[0].applied}" in finding.what


def test_copy_of_the_superblock_one_step_behind_is_sound_and_two_are_not(data: Path) -> None:
    ahead, behind = (data / "shard-0" / name for name in COPIES)
    sequence, state = decode_superblock(ahead.read_bytes())
    ahead.write_bytes(encode_superblock(replace(state, term=2), sequence + 1))
    assert verify(data).is_sound
    ahead.write_bytes(encode_superblock(replace(state, term=2), sequence + 2))
    assert found(verify(data)) == {
        f"shard-0/{behind.name}": "stored 2 times less often than the other copy"
    }
    ahead.write_bytes(encode_superblock(replace(state, term=2), sequence))
    assert "stored at once, but differ" in str(found(verify(data)))


@pytest.mark.parametrize("first", [True, False])
def test_copy_of_the_superblock_that_was_torn_is_sound(data: Path, first: bool) -> None:
    """Half of the new state is written, to the one copy or then to the other."""
    copies = [data / "shard-0" / name for name in COPIES]
    sequence, state = decode_superblock(copies[0].read_bytes())
    new = encode_superblock(replace(state, term=5, vote=3), sequence + 1)
    if not first:
        copies[0].write_bytes(new)
    torn = copies[0 if first else 1]
    torn.write_bytes(new[:256] + torn.read_bytes()[256:])
    verdict = verify(data)
    assert verdict.is_sound
    assert "its last write is torn" in verdict.notes[0].what
    flip(torn, 100)
    assert not verify(data).is_sound


def test_first_boot_that_was_killed_is_sound_at_every_step(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shard = data / "shard-0"
    (shard / "log").mkdir(parents=True)
    assert verify(data / "shard-0").is_sound
    whole = ShardWriter(tmp_path / "whole", "shard-0")
    whole.close(clean=False)
    for name in (COPIES[0], "kv", "snapshots", COPIES[1]):
        source = whole.data / "shard-0" / name
        if source.is_dir():
            shutil.copytree(source, shard / name)
        else:
            state = decode_superblock(source.read_bytes())[1]
            (shard / name).write_bytes(encode_superblock(state, 1))
        assert verify(shard).is_sound, name


# -- what is missing ------------------------------------------------------------------------------


def test_log_that_was_emptied_is_damage(data: Path) -> None:
    for path in (data / "shard-1" / "log").iterdir():
        path.unlink()
    assert found(verify(data)) == {"shard-1/log": "the log was emptied"}


def test_segment_that_is_missing_is_named(data: Path) -> None:
    missing = segments(data)[3]
    missing.unlink()
    assert found(verify(data)) == {f"shard-1/log/{missing.name}": "this segment is missing"}


def test_files_without_a_superblock_are_damage(data: Path) -> None:
    for name in COPIES:
        (data / "shard-1" / name).unlink()
    assert "no superblock" in found(verify(data))["shard-1/superblock.a"]


def test_keys_that_are_missing_are_made_again_from_the_log_if_it_is_whole(data: Path) -> None:
    shutil.rmtree(data / "shard-1" / "kv")
    assert verify(data).is_sound
    for path in segments(data)[:4]:
        path.unlink()
        path.with_suffix(".idx").unlink()
    assert verify(data).is_sound, "the snapshot covers the rest"
    shutil.rmtree(data / "shard-1" / "snapshots")
    assert "no sound snapshot" in verify(data).damage[0].means


def test_partition_that_is_missing_is_named(data: Path) -> None:
    (path,) = (data / "shard-1" / "partitions").glob("*/*")
    shutil.rmtree(path)
    name = path.relative_to(data).as_posix()
    assert "is missing" in found(verify(data))[name]


# -- the files beside the shards ------------------------------------------------------------------


def test_identity_must_be_there_and_spelt_as_it_was(data: Path) -> None:
    path = data / IDENTITY
    content = path.read_bytes()
    path.write_bytes(content.replace(b"  ", b" \t", 1))
    (finding,) = verify(data).damage
    assert (finding.path, finding.offset) == (IDENTITY, 3)
    path.unlink()
    assert "missing" in found(verify(data))[IDENTITY]


def test_directory_of_a_shard_too_many_is_damage(data: Path) -> None:
    path = data / IDENTITY
    identity = decode_identity(path.read_bytes(), path)
    path.write_bytes(encode_identity(replace(identity, shards=1)))
    assert found(verify(data)) == {"shard-1": "a directory of 1 shards"}


def test_configuration_that_was_changed_by_hand_is_a_note(data: Path) -> None:
    (data / "config.toml").write_text("[node\n")
    verdict = verify(data)
    assert verdict.is_sound
    assert "not TOML" in verdict.notes[0].what


# -- what a path is -------------------------------------------------------------------------------


def test_one_shard_can_be_looked_at_alone(data: Path) -> None:
    verdict = verify(data / "shard-1")
    assert verdict.is_sound
    assert [shard.name for shard in verdict.shards] == ["shard-1"]


@pytest.mark.parametrize("name", ["nothing", "empty", "node.json"])
def test_what_is_no_directory_of_ours_is_not_found(data: Path, name: str) -> None:
    (data / "empty").mkdir()
    with pytest.raises(NotFound, match="expected the directory of a node"):
        verify(data / name)


@pytest.mark.parametrize("below", ["", "shard-1"])
def test_directory_in_which_a_node_runs_is_refused(data: Path, below: str) -> None:
    with (data / LOCK).open("w") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DirectoryInUse, match="process 4711"):
            verify(data / below)
    assert verify(data / below).is_sound


def test_words_of_an_earlier_run_are_told(data: Path) -> None:
    shard = data / "shard-0"
    (shard / "quarantine").mkdir()
    (shard / "quarantine" / "log").touch()
    (shard / "rebuild").write_text("KeysCorrupt: a page")
    verdict = verify(data)
    assert verdict.is_sound
    assert "KeysCorrupt: a page" in verdict.notes[0].what
    assert "1 damaged" in verdict.notes[1].what
    (shard / "fenced").write_text("it hashes to another number")
    assert "another number" in found(verify(data))["shard-0/fenced"]


def test_new_node_without_any_shard_is_sound(tmp_path: Path) -> None:
    write_node(tmp_path / "data", shards=0)
    assert verify(tmp_path / "data").is_sound

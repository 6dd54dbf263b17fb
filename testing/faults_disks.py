"""The failures of disks that a node must survive, 1 to 16, and what injects each of them.

The one rule: as in `faults_kinds.py`.
"""

from __future__ import annotations

from shardnode.testing.faults_kinds import Failure, Kills, Seeds, Soak, tests

_ALONE = "test_damage.py::test_damaged_shard_is_fenced_or_mended_and_the_other_serves"
_ONE_OF_THREE = "test_damaged_files.py::test_damage_on_one_of_three_costs_nothing"
_SEGMENTS = ("sealed segment", "last segment")
_METADATA = (
    "superblock, one copy",
    "superblock, both copies",
    "snapshot file",
    "snapshot manifest",
)
_LOG = "test_failures.py::test_"

DISK_FAILURES = (
    Failure(
        1,
        "the last batch of the log is torn",
        "cut at every byte; half a write, then SIGKILL",
        (
            tests(
                "storage",
                f"{_LOG}a_batch_torn_at_any_byte_is_cut_and_the_log_boots",
                f"{_LOG}a_torn_batch_does_not_come_back_after_the_next_one_was_written",
                f"{_LOG}only_the_last_batch_may_be_torn",
            ),
            Kills(("log.write.torn",)),
            Seeds(("crash_in_disk",)),
        ),
    ),
    Failure(
        2,
        "the log ends with zeros",
        "zeros of several lengths after the last batch",
        (tests("storage", f"{_LOG}a_tail_of_zeros_is_the_end_of_the_log"),),
    ),
    Failure(
        3,
        "a later write is there, an earlier one is not",
        "a hole above and below the durable mark; power loss that reorders",
        (
            tests(
                "storage",
                f"{_LOG}a_hole_before_a_later_batch_is_where_the_log_is_cut",
                f"{_LOG}a_hole_below_the_durable_mark_is_damage",
            ),
            Seeds(("crash_in_disk", "crash_all")),
        ),
    ),
    Failure(
        4,
        "a length is garbage",
        "absurd lengths, with right and wrong checksums; memory is measured",
        (
            tests(
                "storage",
                f"{_LOG}a_garbage_length_asks_for_no_memory",
                f"{_LOG}a_garbage_length_inside_a_durable_record_is_damage",
                "test_hostile_bytes.py::test_absurd_lengths_under_a_right_checksum_are_refused",
                "test_hostile_bytes.py::test_absurd_record_lengths_are_refused",
            ),
        ),
    ),
    Failure(
        5,
        "a bit flips in a sealed segment",
        "bits flipped on disk: under a reader, on a real node, on one of three, in the simulator",
        (
            tests(
                "storage",
                f"{_LOG}a_flipped_bit_in_a_sealed_segment_is_damage_whoever_meets_it",
                "test_bit_flips.py::test_a_flip_met_by_a_reader_of_an_open_log_is_never_a_wrong_record",
            ),
            tests(
                "shard",
                "test_worker.py::test_damaged_log_fences_the_shard_and_says_why_to_everybody",
            ),
            tests("system", *(f"{_ALONE}[{kind}-1]" for kind in _SEGMENTS)),
            tests("cluster", *(f"{_ONE_OF_THREE}[{kind}]" for kind in _SEGMENTS)),
            Seeds(("flip_bit",)),
        ),
    ),
    Failure(
        6,
        "a snapshot or metadata is damaged",
        "bits flipped in snapshots, manifests, superblocks and node.json",
        (
            tests(
                "storage",
                "test_snapshots.py::test_a_damaged_snapshot_is_named_and_never_deleted",
                "test_bit_flips.py::test_a_flipped_bit_is_found_and_the_file_is_named",
                "test_bit_flips.py::test_a_flip_in_both_superblock_copies_is_unreadable",
                f"{_LOG}a_damaged_segment_header_is_never_taken_for_a_leftover",
            ),
            tests(
                "node", "test_identity.py::test_damaged_identity_is_never_taken_for_a_first_start"
            ),
            tests("system", "test_damage.py::test_damaged_identity_refuses_the_start_and_is_named"),
            tests("system", *(f"{_ALONE}[{kind}-1]" for kind in _METADATA)),
            tests("cluster", *(f"{_ONE_OF_THREE}[{kind}]" for kind in _METADATA)),
            Seeds(("flip_snapshot", "flip_copy")),
        ),
    ),
    Failure(
        7,
        "the log is emptied",
        "all segments removed, at rest and in the simulator",
        (
            tests(
                "storage",
                "test_recovery.py::test_an_emptied_log_needs_repair",
                "test_recovery.py::test_a_log_emptied_right_after_the_first_boot_needs_repair",
            ),
            tests("raft", "test_recovery.py::test_recovering_member_neither_votes_nor_pre_votes"),
            Seeds(("empty_log",)),
        ),
    ),
    Failure(
        8,
        "an fsync fails",
        "EIO from an fsync of a real worker's log, from each one of the storage classes",
        (
            tests("storage", f"{_LOG}a_failed_fsync_at_any_point_is_final"),
            tests(
                "system",
                "test_disks.py::test_failed_fsync_ends_the_worker_at_once_and_nothing_acknowledged_is_lost",
            ),
            Seeds(("failing_sync",)),
        ),
    ),
    Failure(
        9,
        "the disk is full",
        "ENOSPC at named points of a real worker; a real disk of 24 MiB; the simulator",
        (
            tests(
                "system",
                "test_disks.py::test_full_disk_refuses_writes_with_a_typed_error_serves_reads_and_recovers",
                "test_disks.py::test_small_disk_that_fills_up_refuses_writes_serves_reads_and_recovers",
            ),
            tests("raft", "test_disk_full.py::test_leader_without_space_steps_down"),
            Seeds(("full_disk",)),
        ),
    ),
    Failure(
        10,
        "LMDB's map is full",
        "a map of a few pages, and more keys than it holds",
        (tests("engine", "test_files.py::test_map_grows_when_it_is_full"),),
    ),
    Failure(
        11,
        "LMDB has stale readers",
        "a process that reads is killed; its slot is found and freed at the next open",
        (tests("engine", "test_readers.py::test_slot_of_a_killed_reader_is_freed_at_open"),),
    ),
    Failure(
        12,
        "power loss undoes LMDB's last commit",
        "its newest commit is made void in the files of a killed node; redo from the log",
        (
            tests(
                "engine",
                "test_files.py::test_durable_is_the_commit_before_the_last_until_the_files_are_opened_again",
                "test_replicas.py::test_redo_after_a_crash_applies_nothing_twice",
            ),
            tests(
                "system",
                "test_damage.py::test_commit_that_a_power_failure_undid_is_redone_from_the_log",
            ),
        ),
    ),
    Failure(
        13,
        "SIGKILL between applying and storing the index",
        "SIGKILL before and after LMDB's commit on a real node under load",
        (
            Kills(("kv.commit",)),
            tests("engine", "test_replicas.py::test_redo_after_a_crash_applies_nothing_twice"),
        ),
    ),
    Failure(
        14,
        "a crash during a segment roll or a rename",
        "SIGKILL around every rename, allocation and directory sync; power loss at every operation",
        (
            Kills(
                (
                    "log.rename",
                    "log.sync_dir",
                    "log.allocate",
                    "snapshot.rename",
                    "superblock.rename",
                )
            ),
            tests(
                "storage",
                "test_crashes.py::test_power_lost_during_a_roll_leaves_the_log_before_it_or_after_it",
                "test_snapshots.py::test_a_write_that_loses_power_leaves_the_old_snapshot_or_both",
                "test_superblock.py::test_a_store_that_loses_power_leaves_the_old_state_or_the_new",
            ),
        ),
    ),
    Failure(
        15,
        "all replicas lose power",
        "the simulator drops what was not synced on all; all real nodes are killed at once",
        (
            tests(
                "shard",
                "test_replica.py::test_everything_acknowledged_survives_a_power_loss_of_all",
            ),
            Seeds(("crash_all",)),
            Soak(("crash",)),
        ),
    ),
    Failure(
        16,
        "an fsync is slow",
        "4 s more for one fsync of a real leader of three",
        (tests("system", "test_disks.py::test_leader_with_a_slow_disk_is_replaced"),),
    ),
)

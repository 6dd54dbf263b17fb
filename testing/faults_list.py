"""The failures that a node must survive, by number, and what injects each of them: those of
consensus (17 to 29) and of processes (30 to 36) here, those of disks in `faults_disks.py`.

The one rule: as in `faults_kinds.py`.
"""

from __future__ import annotations

from shardnode.testing.faults_disks import DISK_FAILURES
from shardnode.testing.faults_kinds import Failure, Kills, Seeds, Soak, tests

_ONE_OF_THREE = "test_damaged_files.py::test_damage_on_one_of_three_costs_nothing"

FAILURES = (
    *DISK_FAILURES,
    Failure(
        17,
        "a leader is stopped past the election timeout, then goes on",
        "SIGSTOP and SIGCONT to all processes of a node under load; pauses in the simulator",
        (
            tests("cluster", "test_faults.py::test_paused_leader_tells_no_lies_when_it_goes_on"),
            Seeds(("pause",)),
            Soak(("pause",)),
        ),
    ),
    Failure(
        18,
        "clocks jump",
        "wall clocks are not read by consensus (house rule); leaders' wall clocks jump by a day",
        (
            tests("", "test_tidy.py::test_tree_keeps_the_rule[banned_names_are_not_used]"),
            tests("shard", "test_stamps.py::test_stamps_never_go_back_whatever_the_clock_does"),
        ),
    ),
    Failure(
        19,
        "a partitioned member comes back",
        "a member is cut off and heard again",
        (
            tests(
                "raft",
                "test_paper_elections.py::test_cut_off_member_does_not_inflate_its_term",
                "test_paper_elections.py::test_pre_vote_changes_nothing_at_the_voter",
            ),
            Seeds(("isolate",)),
            Soak(("partition",)),
        ),
    ),
    Failure(
        20,
        "links fail in part",
        "links cut in one direction, and between two of three",
        (
            tests("cluster", "test_faults.py::test_leader_that_nobody_hears_is_replaced"),
            Seeds(("one_way", "partial")),
            Soak(("partial", "mute", "deaf")),
        ),
    ),
    Failure(
        21,
        "a removed member campaigns",
        "a member that was removed and not told stands for election",
        (
            tests("raft", "test_paper_membership.py::test_removed_member_does_not_disrupt"),
            Seeds(("reconfigure",)),
        ),
    ),
    Failure(
        22,
        "replies come twice or in another order",
        "a proxy drops, doubles, delays and reorders; so does the simulator",
        (
            tests(
                "cluster",
                "test_faults.py::test_messages_lost_doubled_reordered_and_late_are_harmless",
            ),
            Seeds(("bad_weather", "clog")),
            Soak(("noise", "delay")),
        ),
    ),
    Failure(
        23,
        "a snapshot is cut off on its way, or another follows",
        "the download is closed, killed and robbed of power at every piece",
        (
            tests(
                "storage",
                "test_receiver.py::test_a_download_closed_at_any_chunk_goes_on_there",
                "test_receiver.py::test_a_download_that_loses_power_at_any_operation_ends_whole",
                "test_receiver.py::test_another_snapshot_replaces_the_one_on_its_way",
            ),
            Seeds(("crash", "reconfigure")),
        ),
    ),
    Failure(
        24,
        "the leader truncates its log during a long install",
        "a newer snapshot takes the place of the one being fetched",
        (
            tests(
                "raft",
                "test_paper_snapshots.py::test_leader_that_truncated_again_offers_the_newer_snapshot",
                "test_paper_snapshots.py::test_snapshot_that_was_overtaken_is_not_installed",
            ),
        ),
    ),
    Failure(
        25,
        "a snapshot overtakes a write that waits",
        "a leader loses its lead and gets a snapshot; leadership is handed about in the simulator",
        (
            tests(
                "shard",
                "test_replica.py::test_lagging_member_is_brought_up_by_a_snapshot",
                "test_replica.py::test_those_who_wait_for_a_leader_that_lost_its_group_hear_that_nobody_knows",
            ),
            Seeds(("transfer",)),
        ),
    ),
    Failure(
        26,
        "reads before the replay is complete",
        "a new leader is asked at once",
        (
            tests(
                "raft",
                "test_paper_clients.py::test_new_leader_serves_no_read_before_its_no_op_is_committed",
                "test_paper_clients.py::test_read_waits_until_its_index_is_applied",
            ),
        ),
    ),
    Failure(
        27,
        "a member has lost its disk",
        "its directory is emptied on one of three real nodes; logs are emptied in the simulator",
        (
            tests(
                "cluster",
                *(f"{_ONE_OF_THREE}[{kind}]" for kind in ("LMDB, its beginning", "node.json")),
            ),
            tests(
                "cluster",
                "test_fencing.py::test_replica_that_forgot_something_fences_itself_and_comes_back_from_the_others",
            ),
            tests(
                "raft", "test_recovery.py::test_group_waits_rather_than_lose_what_was_acknowledged"
            ),
            Seeds(("empty_log",)),
        ),
    ),
    Failure(
        28,
        "a kill, a partition and a removal together",
        "all three kinds in one run; members leave and join a real cluster under load",
        (
            Seeds(("crash", "split", "reconfigure")),
            tests(
                "shard", "test_steward.py::test_change_goes_on_when_its_leader_dies_in_the_middle"
            ),
            Soak(("members",)),
        ),
    ),
    Failure(
        29,
        "a message of another cluster or shard",
        "strangers' letters to a worker's socket and to consensus",
        (
            tests(
                "shard", "test_peers.py::test_damage_strangers_and_nonsense_are_dropped_and_counted"
            ),
            tests("raft", "test_bounds.py::test_stranger_s_message_is_dropped_and_counted"),
            Seeds(("stranger",)),
        ),
    ),
    Failure(
        30,
        "another number of shards than stored",
        "`start --shards` with another number",
        (
            tests(
                "system",
                "test_directories.py::test_another_number_of_shards_is_refused_with_both_numbers",
            ),
        ),
    ),
    Failure(
        31,
        "two supervisors on one directory",
        "a second `start` while the first runs; many at once on nothing",
        (
            tests("system", "test_directories.py::test_second_supervisor_on_one_directory_exits"),
            tests("node", "test_identity.py::test_of_many_that_start_at_once_on_nothing_one_wins"),
        ),
    ),
    Failure(
        32,
        "the supervisor is killed",
        "SIGKILL to it, again and again under load",
        (
            tests(
                "system",
                "test_kills.py::test_killed_supervisor_leaves_no_process_and_a_restart_works",
            ),
            Kills(("SIGKILL to the node",)),
            Soak(("kill",)),
        ),
    ),
    Failure(
        33,
        "process ids are used again",
        "ends are noticed through handles; one that is gone is never taken for another",
        (
            tests(
                "supervisor",
                "test_policy.py::test_process_that_is_gone_is_not_pinned",
                "test_node.py::test_killed_worker_comes_back_alone",
            ),
        ),
    ),
    Failure(
        34,
        "a crash loop",
        "a worker that dies at each start",
        (
            tests(
                "supervisor",
                "test_node.py::test_crash_loop_is_parked_and_the_rest_serves",
                "test_policy.py::test_eighth_death_within_a_minute_parks",
                "test_policy.py::test_long_life_is_forgiven_everything_before",
            ),
        ),
    ),
    Failure(
        35,
        "a worker hangs",
        "SIGSTOP to a real worker",
        (
            tests("system", "test_kills.py::test_hanging_worker_is_noticed_and_replaced"),
            tests("supervisor", "test_node.py::test_worker_that_hangs_is_killed_and_started_again"),
        ),
    ),
    Failure(
        36,
        "SIGTERM under load",
        "SIGTERM and SIGINT while a client writes; restarts of a real cluster under load",
        (
            tests(
                "system",
                "test_kills.py::test_stop_under_load_keeps_what_was_acknowledged_and_exits_0",
            ),
            tests("cluster", "test_faults.py::test_rolling_restart_loses_nothing"),
            Soak(("restart", "rolling")),
        ),
    ),
)

"""A group under churn, for a moment: see `testing/group_soak.py`."""

from __future__ import annotations

from shardnode.testing.group_soak import GroupSoak


def test_nothing_is_missed_and_no_commit_goes_back_while_members_come_and_go() -> None:
    result = GroupSoak(members=3, partitions=4, nodes=1, seed=5).run(seconds=6.0)
    assert result.problems == []
    assert result.processed == result.acknowledged > 500
    assert result.looks > 5
    assert result.acts["joined"] > 3

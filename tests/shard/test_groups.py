"""Groups and assignments: fair, sticky, and never two holders of one partition."""

from __future__ import annotations

import random

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardnode.shard.assignment import assign
from shardnode.shard.groups import Groups, Place
from shardnode.wire import limits
from shardnode.wire.errors import LimitExceeded, NotFound, SessionExpired

ORDERS = Place(1, 2, 8)
PAYMENTS = Place(1, 3, 5)
SPACES = ORDERS.namespaces


def groups(**places: Place) -> Groups:
    found = Groups()
    found.set_places(1, {f"shop/{name}": place for name, place in places.items()})
    return found


def copy_of(all_groups: Groups) -> Groups:
    return Groups.from_rows(msgpack.unpackb(msgpack.packb(all_groups.rows())))


@given(
    st.integers(0, 40),
    st.lists(st.sets(st.sampled_from("abcdefg"), max_size=7), min_size=1, max_size=6),
)
def test_shares_differ_by_one_at_most_and_nothing_moves_without_need(
    count: int, rounds: list[set[str]]
) -> None:
    partitions = {"t": list(range(count))}
    before: dict[int, str] = {}
    for readers in rounds:
        target = assign(partitions, {name: ["t"] for name in readers}, before)
        if not readers:
            assert target == {}
            continue
        assert sorted(target) == partitions["t"]
        loads = [sum(holder == name for holder in target.values()) for name in readers]
        assert max(loads) - min(loads) <= 1
        floor, more = divmod(count, len(readers))
        could_stay = sorted(
            (sum(before.get(n) == name for n in range(count)) for name in readers), reverse=True
        )
        quotas = [floor + (place < more) for place in range(len(readers))]
        stay = sum(min(had, quota) for had, quota in zip(could_stay, quotas, strict=True))
        assert sum(before.get(n) == holder for n, holder in target.items()) == stay
        before = target


def test_topics_are_read_by_those_who_want_them_and_the_larger_shares_are_spread() -> None:
    partitions = {"one": [1, 2, 3], "two": [4, 5, 6]}
    target = assign(partitions, {"a": ["one", "two"], "b": ["one", "two"], "c": ["two"]}, {})
    assert {target[n] for n in (1, 2, 3)} == {"a", "b"}
    assert {target[n] for n in (4, 5, 6)} == {"a", "b", "c"}
    target = assign(partitions, {"a": ["one", "two"], "b": ["one", "two"]}, {})
    assert sorted(list(target.values()).count(name) for name in "ab") == [3, 3]


def test_first_member_gets_all_and_a_second_one_only_what_was_given_up() -> None:
    all_groups = groups(orders=ORDERS)
    first = all_groups.join("g", "a", ["shop/orders"], 1_000, 0)
    assert list(first.assigned) == SPACES
    second = all_groups.join("g", "b", ["shop/orders"], 1_000, 0)
    assert list(second.assigned) == []
    told = all_groups.beat("g", "a", first.generation, SPACES, 10)
    assert list(told.assigned) == SPACES[:4]
    assert list(all_groups.beat("g", "b", second.generation, [], 10).assigned) == []
    # An answer to an older generation proves nothing: the assignment may still be on its way.
    all_groups.beat("g", "a", first.generation, SPACES[:4], 20)
    assert list(all_groups.beat("g", "b", second.generation, [], 20).assigned) == []
    all_groups.beat("g", "a", told.generation, SPACES[:4], 30)
    given = all_groups.beat("g", "b", second.generation, [], 30)
    assert list(given.assigned) == SPACES[4:]
    assert given.generation > told.generation


def test_member_that_leaves_or_is_silent_frees_its_partitions_at_once() -> None:
    all_groups = groups(orders=ORDERS)
    all_groups.join("g", "a", ["shop/orders"], 1_000, 0)
    all_groups.join("g", "b", ["shop/orders"], 5_000, 0)
    assert all_groups.first_deadline(0) == 1_000
    assert all_groups.expire(1_000, 0) == 0
    assert all_groups.expire(1_001, 500) == 0, "a new leader listens for a while first"
    assert all_groups.expire(1_001, 0) == 1
    assert list(all_groups.beat("g", "b", 0, [], 1_002).assigned) == SPACES
    with pytest.raises(SessionExpired, match="join again"):
        all_groups.beat("g", "a", 9, SPACES, 1_003)
    all_groups.leave("g", "b")
    all_groups.leave("g", "b")
    found = all_groups.describe("g")
    assert (list(found.members), list(found.namespaces)) == ([], SPACES)
    assert set(found.holders) == {None}


def test_member_that_joins_again_holds_nothing_and_gets_all_anew() -> None:
    all_groups = groups(orders=ORDERS)
    first = all_groups.join("g", "a", ["shop/orders"], 1_000, 0)
    again = all_groups.join("g", "a", ["shop/orders"], 1_000, 0)
    assert list(again.assigned) == SPACES
    assert again.generation > first.generation


def test_released_partition_comes_back_when_its_holder_has_let_go() -> None:
    all_groups = groups(orders=ORDERS)
    joined = all_groups.join("g", "a", ["shop/orders"], 1_000, 0)
    all_groups.release("g", SPACES[:1])
    told = all_groups.beat("g", "a", joined.generation, SPACES, 1)
    assert list(told.assigned) == SPACES[1:]
    back = all_groups.beat("g", "a", told.generation, SPACES[1:], 2)
    assert list(back.assigned) == SPACES
    with pytest.raises(NotFound, match="no group x"):
        all_groups.release("x", [])


def test_topics_that_grow_or_go_change_what_is_held() -> None:
    all_groups = groups(orders=ORDERS)
    joined = all_groups.join("g", "a", ["shop/orders", "shop/payments"], 1_000, 0)
    all_groups.set_places(2, {"shop/orders": ORDERS, "shop/payments": PAYMENTS})
    told = all_groups.beat("g", "a", joined.generation, SPACES, 1)
    assert list(told.assigned) == SPACES + PAYMENTS.namespaces
    all_groups.set_places(1, {})
    assert list(all_groups.beat("g", "a", told.generation, told.assigned, 2).assigned) == list(
        told.assigned
    ), "a leader that lags changes nothing"
    all_groups.set_places(3, {"shop/payments": PAYMENTS})
    told = all_groups.beat("g", "a", told.generation, told.assigned, 3)
    assert list(told.assigned) == PAYMENTS.namespaces
    assert all_groups.topics == {"shop/orders", "shop/payments"}


def test_limits_of_members_and_groups_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "group_members_max", 1)
    monkeypatch.setattr(limits, "groups_max", 1)
    all_groups = groups(orders=ORDERS)
    all_groups.join("g", "a", [], 1_000, 0)
    with pytest.raises(LimitExceeded, match="group_members_max"):
        all_groups.join("g", "b", [], 1_000, 0)
    with pytest.raises(LimitExceeded, match="groups_max"):
        all_groups.join("h", "a", [], 1_000, 0)
    assert list(all_groups.page(None, 0).names) == ["g"]


def test_pages_of_groups_follow_each_other() -> None:
    all_groups = groups()
    for name in ("c", "a", "b"):
        all_groups.join(name, "m", [], 1_000, 0)
    page = all_groups.page(None, 2)
    assert (list(page.names), list(page.member_counts), page.next) == (["a", "b"], [1, 1], "b")
    page = all_groups.page("b", 2)
    assert (list(page.names), page.next) == (["c"], None)


class Consumer:
    """A member as a client would be: it believes answers in the order of generations."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = 0
        self.held: set[int] = set()

    def hear(self, generation: int, assigned: list[int]) -> None:
        if generation >= self.generation:
            self.generation, self.held = generation, set(assigned)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_no_partition_ever_has_two_holders_and_all_are_held_in_the_end(seed: int) -> None:
    """Members join, leave, die, and hear answers late; some heartbeats come out of order."""
    rng = random.Random(seed)
    all_groups = groups(orders=ORDERS)
    alive: dict[str, Consumer] = {}
    late: list[tuple[Consumer, int, frozenset[int]]] = []
    now_ms = 0
    for step in range(60):
        now_ms += 1
        action = rng.choice(["join", "leave", "die", "beat", "beat", "beat", "late", "release"])
        if action == "join" and len(alive) < 5:
            member = Consumer(f"m{step}")
            told = all_groups.join("g", member.name, ["shop/orders"], 100, now_ms)
            alive[member.name] = member
            member.hear(told.generation, list(told.assigned))
        elif action == "release" and alive:
            all_groups.release("g", rng.sample(SPACES, 2))
        elif action == "late" and late:
            member, generation, held = late.pop(rng.randrange(len(late)))
            if member.name in alive:
                all_groups.beat("g", member.name, generation, held, now_ms)
        elif alive and action in ("leave", "die", "beat"):
            member = rng.choice(list(alive.values()))
            if action == "beat":
                late.append((member, member.generation, frozenset(member.held)))
                told = all_groups.beat("g", member.name, member.generation, member.held, now_ms)
                if rng.random() < 0.7:
                    member.hear(told.generation, list(told.assigned))
            elif action == "leave":
                del alive[member.name]
                all_groups.leave("g", member.name)
            else:
                del alive[member.name]  # what it holds does not matter: claims fence it
                all_groups.expire(now_ms + 101, now_ms)
                for other in list(alive.values()):
                    with pytest.raises(SessionExpired):
                        all_groups.beat("g", other.name, 0, [], now_ms)
                alive.clear()
        holding = [namespace for member in alive.values() for namespace in member.held]
        assert len(holding) == len(set(holding)), "two hold one partition"
        if rng.random() < 0.2:
            all_groups = copy_of(all_groups)
    for _ in range(4):
        for member in alive.values():
            told = all_groups.beat("g", member.name, member.generation, member.held, now_ms)
            member.hear(told.generation, list(told.assigned))
    holding = [namespace for member in alive.values() for namespace in member.held]
    assert sorted(holding) == (SPACES if alive else [])
    assert copy_of(all_groups).rows() == all_groups.rows()

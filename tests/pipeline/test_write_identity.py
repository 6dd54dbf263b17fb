"""Equal rows of one author have one name; everything else has another."""

from __future__ import annotations

from random import Random

from shardnode.pipeline.write_identity import Author, Names, batch_of, digest_of, job_of_query

AUTHOR = Author(b"j" * 16, 3, 17, is_stream=True)


def test_a_digest_does_not_look_at_the_order_of_rows_but_at_every_row() -> None:
    rng = Random(5)
    rows = [(rng.randbytes(8), rng.randbytes(20)) for _ in range(100)]
    mixed = rng.sample(rows, len(rows))
    keys, values = zip(*rows, strict=True)
    digest = digest_of(values, keys)
    assert digest == digest_of([value for _, value in mixed], [key for key, _ in mixed])
    swapped = [values[1], values[0], *values[2:]]
    assert digest != digest_of(swapped, keys), "another value for a key"
    assert digest != digest_of(values[1:], keys[1:])
    assert digest != digest_of([*values, b""], [*keys, b""])
    assert digest != digest_of(values, [None, *keys[1:]])
    assert digest != digest_of(values, keys, 1000)
    assert digest_of(values) != digest_of(values, [b""] * 100)


def test_equal_rows_that_come_again_are_other_rows() -> None:
    first, again = Names(), Names()
    names = [first.of(5, 0), first.of(5, 0), first.of(5, 1), first.of(6, 0)]
    assert len(set(names)) == 4
    assert [again.of(6, 0), again.of(5, 1), again.of(5, 0), again.of(5, 0)] == [
        names[3],
        names[2],
        names[0],
        names[1],
    ]


def test_who_else_writes_has_another_session_and_another_producer() -> None:
    job, other = job_of_query("q", "keys"), job_of_query("q", "topic default/a")
    authors = [Author(job, 0), Author(job, 1), Author(other, 0), Author(job, 0, 1 << 15)]
    sessions = {a.session(volume, era) for a in authors for volume in (0, 1) for era in (0, 1)}
    assert len(sessions) == 16
    assert all(len(session) == 16 for session in sessions)
    assert Author(job, 0, 5).session(0, 0) == Author(job, 0, 9).session(0, 0)
    names = {a.producer(slot, variant) for a in authors for slot in (0, 1) for variant in (0, 1)}
    assert len(names) == 12, "a producer lives on over micro-batches"


def test_later_micro_batches_have_higher_numbers_and_leave_the_earlier_ones_behind() -> None:
    for batch in (0, 1, 17, (1 << 15) - 2):
        low, high = (Author(b"j" * 16, 0, batch + n, is_stream=True) for n in (0, 1))
        now, then = low.identity(b"s" * 16, (1 << 64) - 1), high.identity(b"s" * 16, 0)
        assert now.acked_below <= now.sequence < then.acked_below <= then.sequence < 1 << 63
        assert low.producer_sequence((1 << 64) - 1) < high.producer_sequence(0)
        assert batch_of(high.producer_sequence(12345)) == batch + 1


def test_numbers_are_away_from_those_that_a_client_counts() -> None:
    assert Author(b"j" * 16, 0).identity(b"s" * 16, 0).sequence >= 1 << 47
    assert AUTHOR.identity(b"s" * 16, 0).sequence & ((1 << 48) - 1) >= 1 << 47

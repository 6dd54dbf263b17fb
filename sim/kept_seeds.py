"""The seed that finds each known bug soonest, and the step at which it does.

The one rule: `scripts/mutants --jobs 2 --write` writes this file, nobody else. What changes the
runs of seeds may make one of them find nothing; the same command finds another.
"""

from __future__ import annotations

KEPT: dict[str, tuple[int, int]] = {
    "vote not fsynced": (61, 473),
    "vote sent before it is stored": (0, 142),
    "acknowledged before the fsync": (0, 142),
    "log not fsynced": (4, 472),
    "new segment's name not fsynced": (62, 498),
    "segment written over before its old name is gone": (23, 1172),
    "segment renamed before its new header is durable": (194, 796),
    "batches of an earlier life believed": (2, 597),
    "failed fsync taken for done": (94, 742),
    "entry of an older term committed by counting": (38, 808),
    "vote for a log that is behind": (170, 1033),
    "two votes in one term": (49, 162),
    "joint consensus asks one half only": (120, 1633),
    "conflicting entries kept": (187, 598),
    "follower commits what it has not compared": (81, 1445),
    "commit advertised before it is applied": (19, 481),
    "read served without a round": (88, 814),
    "stale read after a pause": (149, 2134),
    "read before the leader's first commit": (155, 5202),
    "vote while a leader holds a lease": (41, 5791),
    "lease kept while handing over": (174, 3280),
    "commit restored from the end of the log": (57, 981),
    "torn tail kept": (19, 934),
    "damage taken for a torn tail": (79, 1224),
    "member that lost data votes": (34, 270),
    "watermark of a lost log believed": (85, 5765),
    "member whole again too early": (115, 1231),
    "hash chain broken at a snapshot": (133, 757),
    "received snapshot not verified": (40, 3025),
    "configuration forgotten in a snapshot": (193, 1066),
    "retry applied twice": (114, 2052),
    "sessions forgotten in a snapshot": (69, 646),
    "ended session opened again": (103, 9164),
    "lost proposal reported as applied": (187, 603),
    "stranger listened to": (102, 356),
}

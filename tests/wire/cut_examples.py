"""The examples of bulk reads among the published vectors."""

from __future__ import annotations

from collections.abc import Mapping

from shardnode.wire import cuts
from shardnode.wire.codec import Body
from shardnode.wire.kinds import Kind

CUTS: Mapping[Kind, tuple[Body, Body]] = {
    Kind.CUT_OPEN: (
        cuts.CutOpen(30_000, 70, 0x0123456789ABCDEF, log_bytes_max=1 << 26),
        cuts.CutOpened(
            cut=0xFEDCBA9876543210,
            node=2,
            index=90,
            chain=0x1122334455667788,
            through_ms=1_700_000_000_000,
            snapshot=0x99AABBCCDDEEFF00,
            snapshot_index=80,
            snapshot_bytes=4_096,
            manifest_bytes=512,
            log_after=70,
            log_after_term=3,
            log_after_chain=0x0123456789ABCDEF,
            log_bytes=2_000,
            snapshot_min=80,
            note="",
            directory="/data/shard-1/snapshots/00000000000000000080",
        ),
    ),
    Kind.CUT_READ: (
        cuts.CutRead(0xFEDCBA9876543210, "keys", 4_000, 96),
        cuts.CutPiece(b"\x00\xff"),
    ),
    Kind.CUT_LOG: (cuts.CutLog(0xFEDCBA9876543210, 71, 0, 1 << 20), cuts.CutPiece(b"\x01")),
    Kind.CUT_KEEP: (cuts.CutKeep(0xFEDCBA9876543210, 30_000, 91), cuts.CutKept(30_000)),
    Kind.CUT_CLOSE: (cuts.CutClose(0xFEDCBA9876543210), cuts.CutClosed()),
}

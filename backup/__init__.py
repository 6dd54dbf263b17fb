"""Backups of a running cluster, and data directories made from them.

The one rule: a backup counts once its manifest is there, which is written last, and nothing in it
is believed before its checksum: a file by that of its snapshot, the log by its hash chain.

    format       keys and values: what lies where, and how it is written down
    store        where a backup goes: a folder, or (`objects`) an object store
    blobs        files of snapshots, by their content: what is there is never written again
    chunks       the log in pieces, proven record by record on the way in and on the way out
    pace         a rate that is kept, and leases that are renewed meanwhile
    copying      one shard: opening cuts, and going on when one is lost
    take         a whole backup
    points       pure: from what a restore may begin, and how far it can go
    restore      a data directory for one node
    check        reading all of a backup

In a destination:

    shardnode-backup.json                         whose backups these are
    backups/<id>.json                             one manifest for each
    shard-N/snapshots/<index>-<id>.json           a snapshot: its position, its files
    shard-N/files/<name>/<size>-<checksum>        … and each file, in parts when it is large
    shard-N/log/<first>-<last>-<chain>            records, as `storage.stretch` has them

A backup takes a base for each shard (a snapshot and the log behind it, or the log alone while it
is short) when there is none or much log has gathered behind the last one, and then the log of all
shards up to about the same moment (but not of one that wrote a lot meanwhile). The next backup goes
on from there, so any moment in between can be restored, as long as the shard still had its log when
it was taken.
"""

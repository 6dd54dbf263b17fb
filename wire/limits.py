"""Every limit of the protocol, in one place.

One rule: a number that bounds something a stranger can send is here and nowhere else, its unit
last in its name, its reason beside it. A node may be configured to accept less, never more: the
peer that decodes holds these ceilings.
"""

from typing import Final

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB

# Placement.

slot_bits: Final = 14
"""16,384 slots: with 100 shards about 164 each, so that moving one moves 0.6 % of a shard."""

slots: Final = 1 << slot_bits
"""How many slots the key space is cut into; it never changes, only their owners do."""

slot_id_max: Final = slots - 1
"""Slots are numbered from 0."""

shards_max: Final = 100
"""The direct ports are router port + 100 + shard and the peers' start at + 200."""

shard_id_max: Final = shards_max - 1
"""Shards are numbered from 0."""

stream_id_max: Final = (1 << 20) - 1
"""20 bits of a namespace."""

topic_id_max: Final = (1 << 12) - 1
"""12 bits of a namespace."""

partition_id_max: Final = (1 << 20) - 1
"""20 bits of a namespace."""

partitions_max: Final = partition_id_max + 1
"""Partitions of one topic: as many as can be numbered."""

namespace_max: Final = (1 << 52) - 1
"""A namespace: stream, topic and partition side by side."""

node_id_max: Final = (1 << 48) - 1
"""A member id keeps the shard in its upper 16 bits. Node ids start at 1: 0 means nobody."""

nodes_max: Final = 256
"""Nodes in one topology reply: shards_max groups of a few members, with room to share."""

replicas_max: Final = 900
"""Replicas in one topology reply: shards_max groups of up to nine members."""

cluster_partitions_max: Final = 100_000
"""Partitions of all topics together."""

watermarks_max: Final = 10 * shards_max
"""Partitions in one status reply: the internal ones of every shard."""

# Frames.

frames_max: Final = 5
"""Delimiter, prefix, header, routing key, body."""

frame_bytes_max: Final = 16 * _MIB
"""Writing and syncing 1 MiB takes 2 ms, so one frame holds a shard's loop for about 30 ms, well
within an election timeout. Sockets set it as MAXMSGSIZE."""

body_bytes_max: Final = frame_bytes_max
"""A body is one frame."""

body_depth_max: Final = 2
"""A body is an array of scalars and of flat columns of scalars (in an error: a flat map). Deeper
ones cannot be decoded, so nothing recurses over what a stranger sent."""

routing_key_bytes_max: Final = 480
"""A routing key is a key, a group name or an 8-byte namespace."""

deadline_ms_default: Final = 5_000
"""What a deadline of 0 means; the client library's own default timeout."""

deadline_ms_max: Final = 600_000
"""Ten minutes: a waiter costs memory on the shard for as long as it may wait."""

# Keys, values, batches.

key_bytes_min: Final = 1
"""LMDB has no empty key."""

key_bytes_max: Final = 480
"""LMDB's limit is 511; the rest is kept for the engine's own prefix."""

value_bytes_max: Final = 4 * _MIB
"""A value and its envelope fit four times into a frame; larger things belong in an object store."""

batch_keys_max: Final = 10_000
"""Applying a key costs about 2 µs, so a batch holds a shard's loop for about 20 ms. It stays
below 65,536, because a watch position keeps 16 bits for the place within an entry."""

transact_operations_max: Final = 1_000
"""Comparisons, and operations of each branch: they are evaluated one by one."""

ttl_ms_max: Final = 100 * 365 * 86_400_000
"""A hundred years: the sum with any log stamp is still a date."""

scan_page_bytes_max: Final = 1 * _MIB
"""A page is closed when it has reached this; it holds at least one entry whatever its size."""

scan_page_entries_max: Final = batch_keys_max
"""The same list length as a batch."""

watch_wait_ms_max: Final = 60_000
"""How long a shard parks a watch that has nothing to tell."""

# Streams.

batch_messages_max: Final = 10_000
"""Messages appended at once; the same list length as a batch of keys."""

append_batches_max: Final = 64
"""Batches in one request: what a client gathers while its shard is busy. From here on what a
request costs beside its bytes does not matter any more."""

batch_headers_max: Final = 10_000
"""Headers of all messages of a batch together."""

batch_bytes_max: Final = 8 * _MIB
"""A batch as it is sent and stored: one largest message with its key and headers, twice over."""

read_page_bytes_max: Final = 4 * _MIB
"""A read is closed when it has reached this; with one more largest batch it is still a body."""

read_page_batches_max: Final = 10_000
"""Batches in one read: each can hold a single message."""

read_wait_ms_max: Final = 60_000
"""How long a shard parks a read at the end of its partition."""

# Consumer groups and topics.

group_topics_max: Final = 100
"""Topics that one member of a group reads."""

group_members_max: Final = 1_000
"""A rebalance looks at every member."""

group_partitions_max: Final = 10_000
"""Partitions named in one request of a group."""

groups_max: Final = 10_000
"""Groups of one shard: all are in memory, and written with each flush."""

group_offsets_max: Final = 100_000
"""Offsets of all groups in one shard, for the same reason."""

list_entries_max: Final = 1_000
"""Topics or groups in one page of a list."""

# Sessions.

session_ttl_ms_min: Final = 1_000
"""A shorter one would expire within a leader election."""

session_ttl_ms_max: Final = 86_400_000
"""A day: an abandoned session's cached replies are kept no longer."""

# Bulk reads.

cut_piece_bytes_max: Final = 1 * _MIB
"""Read from memory and sent within a millisecond, so that others hardly notice."""

cut_lease_ms_min: Final = 1_000
"""A shorter one would expire between two pieces."""

cut_lease_ms_max: Final = 600_000
"""Ten minutes: a reader that is gone holds files and log no longer."""

# Text and errors.

name_bytes_max: Final = 255
"""Cluster, stream, topic, group, role and state names; the file system's own limit for a name."""

path_bytes_max: Final = 4_096
"""What Linux takes for the name of a file with its directories."""

topic_name_bytes_max: Final = 2 * name_bytes_max + 1
"""Stream, `/`, topic."""

endpoint_bytes_max: Final = 255
"""An address such as `tcp://host:port`; host names end at 253 bytes."""

cursor_bytes_max: Final = 128 * _KIB
"""A scan cursor holds up to shards_max keys of key_bytes_max bytes, in base64."""

error_message_bytes_max: Final = 4 * _KIB
"""A longer message is cut before it is sent."""

error_details_max: Final = 16
"""Named details of an error."""

error_detail_bytes_max: Final = 1 * _KIB
"""One detail: a key, a name or an address."""

"""wire: what is said between clients, router and shards. Pure: bytes in, values out.

One rule: nothing here opens a socket, reads a clock or keeps state. Whatever a stranger sends, a
decoder returns a value or raises an error of `errors`, and its memory stays within a small
multiple of what was sent.

    limits       every number that bounds something, with its reason
    errors       the error tree, and how an error travels
    frames       the multipart envelope: prefix, header, routing key, body
    kinds        what may be asked, with stable numbers
    codec        bodies: bounded msgpack, read by asking for what is expected
    fields       the types a body is made of, and their checks
    requests     one class per request body
    replies      one class per reply body; the body of an error
    cluster      … those that describe the cluster: topology, route, status
    streams      requests and replies about messages: append, read, look up
    groups       … about consumer groups and their offsets
    cuts         … about consistent cuts of a shard, in bulk
    control      … that change the cluster: topics, nodes
    cursors      where a scan or a watch goes on
    placement    key or partition → slot → shard; ids of partitions and members
    routing      which shard a request is for

`docs/PROTOCOL.md` says the same for a client in another language; a test compares the numbers.
"""

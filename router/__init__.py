"""The front door: one process that forwards every request to the shard that owns it.

It will hold the router loop and its sockets: prefix to shard, key to shard, legacy to shard 0. Its
one rule: it hashes the routing key and never decodes a body, so it need not change when bodies do.
"""

"""The front door: one process that forwards every request to the shard that owns it.

    route     frames in → the shard they go to, or the reply; pure
    lanes     what is under way to each worker, and when that is too much; pure
    settings  what the router is told when it starts
    channel   lines from and to the supervisor
    sockets   every option of every socket
    loop      the only place where something is received or sent

The one rule: it hashes the routing key and never decodes a body, so it need not change when bodies
do. (What it answers itself, TOPOLOGY, EXPLAIN and STATUS, is the exception.)
"""

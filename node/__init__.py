"""One node: the supervisor that pins, watches and restarts one worker process per shard.

    handle       start a node, wait for it, look at it, stop it
    supervisor   the loop over processes and pipes (`_policy` what it decides, `_member` one post,
                 `_run` the folder of its sockets)
    children     one process and its pipes
    ports        which ports are needed, and who has them
    affinity     which worker runs on which CPU
    http         health and metrics
    config       every setting (`_kinds`, `_units`, `_load`, `_check`, `_write`)
    identity     whose a data directory is

The one rule: workers are started fresh as their own programs, never forked and never imported here
beyond their entry points, so a worker can die without taking the node with it.
"""

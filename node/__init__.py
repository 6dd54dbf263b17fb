"""One node: the supervisor that pins, watches and restarts one worker process per shard.

It will hold the configuration, the layout of the data directory, CPU affinity, health and HTTP. Its
one rule: workers are started fresh as their own programs, never forked and never imported here
beyond their entry points, so a worker can die without taking the node with it.
"""

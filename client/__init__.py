"""The client library, re-exported by `shardnode`: the same methods, plain and awaited.

It will hold one pure core (routing, sessions, retries) with two thin fronts over ZeroMQ. Its one
rule: it imports only `shardnode.wire`, so an application gets no server with it.
"""

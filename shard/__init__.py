"""One worker process: the only room where consensus meets storage and sockets.

`Replica` is one member of one group with its files: it takes what the Raft core asks for and does
it, in the order that keeps promises. It touches files only through the `Files` protocol and
sends only through a function it is given, so the simulator drives this very class.
"""

"""A deterministic world that tries to break the production code: one seed, one run, repeatable.

The consensus core, the replica, the log, the superblock and the snapshots are the production
classes. Simulated are only the clock, the network and the disk, and they are unkind: messages
are late, lost, doubled and reordered, links go one way, processes pause and die between any two
disk operations, un-synced bytes vanish or tear, disks fill up, syncs fail, bits flip.

The one rule: everything random comes from the seed, and nothing reads a real clock, so a failure
is a number that anybody can replay with `scripts/sim NUMBER`.

    runner.py    one seed: a safety phase with faults, then a liveness phase without
    world.py     the clock and the queue of events
    network.py   links and what happens to messages on them
    disk.py      files that forget what was not synced
    node.py      one process: a production `Replica` on simulated files
    machine.py   a small key-value state machine with the production session table
    client.py    clients that retry with sessions and note down what they saw
    faults.py    what goes wrong, and when
    checks.py    the invariants, after every step
    history.py   whether what clients saw fits what was committed
    mutants.py   known bugs that it must find; hunt.py looks for the seeds that do
"""

from shardnode.sim.runner import Plan, Report, run_seed
from shardnode.sim.world import SimFailure

__all__ = ["Plan", "Report", "SimFailure", "run_seed"]

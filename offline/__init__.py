"""What is done to the directory of a node that does not run: looked at, explained, repaired.

The one rule: a directory is changed by `repair` alone, and only on a word of the operator for each
file; everything else opens what it reads for reading, and holds the node's lock meanwhile, so that
what is looked at stands still.

    verify      is everything as it was written?
    inspect     what does it say?
    doctor      is the machine fit for it?
    repair      set one damaged file aside, so that peers give back what was in it

Where to look:

    places          what a path is: a data directory, one shard's, a file; and the lock
    verify          the order in which it is all looked at, and the verdict
    verify_node     the files beside the shards
    verify_shard    one shard: do its files agree with each other?
    verify_streams  the entries of the log against the logs of partitions
    replay          the state against what snapshot and log make
    inspect         what is shown of a directory, and of each kind of file
    inspect_log, inspect_entries, inspect_streams, inspect_state, rows
    repair          what can be done about a damaged file; repair_do does it
    doctor          the machine and a quick look at the directory, in doctor_*; advice
"""

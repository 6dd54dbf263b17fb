"""pytest fixtures for users: a real node, a cluster, and the simulator.

It will hold `shardnode_node`, `shardnode_cluster` and `shardnode_sim`. Its one rule: what a fixture
starts, it stops, whatever the test did to it.
"""

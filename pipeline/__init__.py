"""Spark: the data source, the jobs and the search for a Java.

It will hold the `shardnode` format for batch and stream. Its one rule: it reads a running node
through the client and a stopped one through its snapshots, and never opens a live store.
"""

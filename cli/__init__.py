"""The command line, thin: each command turns words into one call of another room and prints.

Its one rule: a command's module, and every room it uses, is imported only when that command runs,
so that `shardnode --version` and `shardnode kv get` do not pay for the simulator or for Spark.
"""

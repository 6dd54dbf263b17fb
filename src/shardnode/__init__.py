"""shardnode: a sharded, replicated key-value and stream store that installs with pip.

The rooms of the project (`raft/`, `storage/`, `wire/` …) stand at the root of the repository and
are reached through this one package, so that nothing of ours can be shadowed by a user's folder
called `storage` or `cli`.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]

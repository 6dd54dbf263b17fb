"""Example configuration files, shipped with the package.

    single       one node, one shard: what `shardnode start` does without a file
    sharded      one node, four shards
    three-node   the same file for each of three nodes on one machine
    reference    every setting with its default and its reason

The one rule: every file here is started by a test.
"""

from importlib import resources

EXAMPLES = ("single", "sharded", "three-node", "reference")


def example(name: str) -> str:
    """The text of one of EXAMPLES, also from an installed wheel."""
    assert name in EXAMPLES, f"no example called {name}"
    return resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")

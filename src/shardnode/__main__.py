"""`python -m shardnode` is the same program as the `shardnode` command."""

from shardnode.cli.main import main

if __name__ == "__main__":
    main()

"""Example configuration files, shipped with the package.

They will be TOML files, `reference.toml` with every key, its default and its reason among them. The
one rule: every file here is started by a test.
"""

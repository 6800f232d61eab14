"""Inspect AI: the sandbox provider and `belljar run`. The only importer of `inspect_ai`.

No other room imports it but fleet and the command line, and that only late.
"""

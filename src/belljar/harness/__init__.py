"""Inspect AI: the sandbox provider and `belljar run`. The only importer of `inspect_ai`.

Must not: be imported by any other room but the command line, and that only late.
"""

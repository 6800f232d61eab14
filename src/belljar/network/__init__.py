"""Simulated networks: `owner`'s side, and forks of the `fork_server`: `supervisor`, `gateway`.

Must not: ever hold an upstream resolver or a route out.
"""

"""Simulated networks: a range's namespace and rules, its gateway and stand-ins, and their ends.

Lives here: the owner's side (`range`, `watch`, `making`, `processes`), and what runs in forks of
the `fork_server`: `supervisor` and `gateway`.
Must not: ever hold an upstream resolver or a route out.
"""

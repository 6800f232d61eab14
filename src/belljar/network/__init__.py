"""Simulated networks. Empty for now: a cell has no network device at all.

Will hold: the namespace, its rules, the gateway and the stand-ins.
Must not: ever hold an upstream resolver or a route out.
"""

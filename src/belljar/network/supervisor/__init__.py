"""The supervisor of a range, a process of its own: namespace, links, rules, listeners, packet
record.

Must not: parse anything of a guest's but fixed headers.
"""

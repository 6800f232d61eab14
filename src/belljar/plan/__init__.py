"""Policy + host facts → a plan, as frozen data. Pure.

Lives here: the tier decision, limits, layers and blast radius, and the argument lists that carry
them out (QEMU, an OCI runtime, the jail).
Must not: touch a file, a clock, a process or the network.
"""

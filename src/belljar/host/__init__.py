"""What this machine can do. Only reads.

Holds: versions of tools, trials of KVM and OCI runtimes, user namespaces, ids, cgroups, memory,
disk. Slow facts are cached in the store's `facts/`.

Must not: install, create or decide anything.
"""

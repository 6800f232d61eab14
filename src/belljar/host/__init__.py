"""What this machine can do: facts, read and never changed.

Lives here: where Belljar keeps its store, which tools of which version are installed, whether KVM really boots a guest, user namespaces, cgroups, memory, disk.
Must not: install, create or decide anything (`belljar setup` lives in `cli`, decisions in `plan`).
"""

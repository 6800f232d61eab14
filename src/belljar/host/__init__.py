"""What this machine can do: facts, read and never changed.

Lives here: which tools of which version are installed, whether KVM really boots a guest and an OCI
runtime runs a container, user namespaces and subordinate ids, cgroups, memory, disk. What is slow
to find out (tool versions, the proofs) is remembered in the store's `facts/`.
Must not: install, create or decide anything (`belljar setup` lives in `cli`, decisions in `plan`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.lazy import lazy_names

if TYPE_CHECKING:
    from belljar.host.facts import gather_facts
    from belljar.host.model import (
        CgroupFact,
        CgroupVersion,
        CoreFact,
        CoreState,
        HostFacts,
        IdsFact,
        KvmFact,
        KvmState,
        RuntimeFact,
        RuntimeState,
        ToolFact,
        UsernsFact,
    )
    from belljar.host.runtimes import KvmProof, ProveKvm, ProveRuntime, RuntimeTrial

__all__ = [
    "CgroupFact",
    "CgroupVersion",
    "CoreFact",
    "CoreState",
    "HostFacts",
    "IdsFact",
    "KvmFact",
    "KvmProof",
    "KvmState",
    "ProveKvm",
    "ProveRuntime",
    "RuntimeFact",
    "RuntimeState",
    "RuntimeTrial",
    "ToolFact",
    "UsernsFact",
    "gather_facts",
]

_PROOFS = {"KvmProof", "ProveKvm", "ProveRuntime", "RuntimeTrial"}
__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(__all__, "belljar.host.model"),
        **dict.fromkeys(_PROOFS, "belljar.host.runtimes"),
        "gather_facts": "belljar.host.facts",
    },
)

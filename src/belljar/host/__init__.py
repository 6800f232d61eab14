"""What this machine can do. Only reads.

Holds: versions of tools, trials of KVM and OCI runtimes, user namespaces, ids, cgroups, memory,
disk. Slow facts are cached in the store's `facts/`.

Must not: install, create or decide anything.
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

"""Host trials of milliseconds, and host facts with them.

`isolation.proofs` has the longer ones, and both engines: it is imported when one is made.
"""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from belljar.host.tools import own_program

if TYPE_CHECKING:
    from belljar.host.model import HostFacts, RuntimeFact
    from belljar.host.runtimes import KvmProof, ProveKvm, ProveRuntime, RuntimeTrial
    from belljar.image.kernel import Kernel
    from belljar.plan.oci import RuntimeKind

_TIMEOUT_S: Final = 5.0


def find_facts(
    home: Path | None = None,
    *,
    prove_kvm: ProveKvm | None = None,
    prove_runtime: ProveRuntime | None = None,
    prove_again: bool = False,
    doubt: bool = False,
) -> HostFacts:
    """`gather_facts` with groups and namespaces tried."""
    from belljar.host.facts import gather_facts
    from belljar.isolation.cgroup import try_group

    return gather_facts(
        home,
        try_group=try_group,
        try_namespaces=try_namespaces,
        prove_kvm=prove_kvm,
        prove_runtime=prove_runtime,
        prove_again=prove_again,
        doubt=doubt,
    )


def runtime_proof(home: Path) -> ProveRuntime:
    """A blocking function for host facts that tries a runtime."""

    def prove(fact: RuntimeFact) -> RuntimeTrial:
        import anyio

        from belljar.isolation.proofs import prove_runtime
        from belljar.plan.oci import OciRuntime

        kind: RuntimeKind = "runsc" if fact.kind == "runsc" else "runc"
        runtime = OciRuntime(name=fact.name, kind=kind, path=fact.path, version=fact.version)
        return anyio.run(partial(prove_runtime, runtime, home=home))

    return prove


def kvm_proof(kernel: Kernel, home: Path) -> ProveKvm:
    """A blocking function for host facts that boots under KVM."""

    def prove() -> KvmProof:
        import anyio

        from belljar.isolation.proofs import boots_under

        return anyio.run(partial(boots_under, "kvm", kernel, home=home))

    return prove


def try_namespaces() -> str:
    """Why the launcher can't make a jail's namespaces, "" when it can.

    Seccomp and security modules have the last word, and may have one for each program.
    """
    try:
        done = subprocess.run(
            [str(own_program("jail")), "--try-namespaces"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={},
        )
    except (OSError, subprocess.SubprocessError) as exc:
        return f"could not be tried: {exc}"
    output = done.stderr.decode("utf-8", "replace").strip()[:200]
    return "" if done.returncode == 0 else f"making one was tried: {output or done.returncode}"

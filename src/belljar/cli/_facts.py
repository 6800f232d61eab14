"""What `plan` and `doctor` share: the host's facts, with KVM and the OCI runtimes proven the way a
cell would prove them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from belljar.host import HostFacts, KvmProof, RuntimeFact, RuntimeTrial


def host_facts(home: Path, *, prove: bool, again: bool = False, doubt: bool = False) -> HostFacts:
    """The facts; with `prove`, a guest is booted under KVM and a container run with each runtime
    where that was never tried.

    `again`: tried anew. `doubt`: a runtime that failed is tried anew, however short ago that was.
    """
    from belljar.host import gather_facts

    if not prove:
        return gather_facts(home)
    return gather_facts(
        home,
        prove_kvm=lambda: _prove(home),
        prove_runtime=lambda runtime: _prove_runtime(runtime, home),
        prove_again=again,
        doubt=doubt,
    )


def _prove(home: Path) -> KvmProof:
    from belljar.image.kernel import current_kernel

    # The kernel first: without one there is nothing to try, and the error says so.
    kernel = current_kernel(home)
    from belljar.isolation.microvm.prove import kvm_proof

    return kvm_proof(kernel, home)()


def _prove_runtime(fact: RuntimeFact, home: Path) -> RuntimeTrial:
    from functools import partial

    import anyio

    from belljar.host import RuntimeTrial
    from belljar.isolation.oci.prove import prove_runtime
    from belljar.plan.oci import OciRuntime

    kind: Literal["runc", "runsc"] = "runsc" if fact.kind == "runsc" else "runc"
    runtime = OciRuntime(name=fact.name, kind=kind, path=fact.path, version=fact.version)
    proof = anyio.run(partial(prove_runtime, runtime, home=home))
    return RuntimeTrial(
        works=proof.works, reason=proof.reason, hint=proof.hint, no_port=proof.no_port
    )

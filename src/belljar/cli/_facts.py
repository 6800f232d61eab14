"""What `plan` and `doctor` share: the host's facts, with KVM proven the way a cell would prove it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from belljar.host import HostFacts, KvmProof


def host_facts(home: Path, *, prove: bool, again: bool = False) -> HostFacts:
    """The facts; with `prove`, a guest is booted under KVM when that was never tried on this kernel, VMM and processor (`again`: tried anew)."""
    from belljar.host import gather_facts

    return gather_facts(home, prove_kvm=(lambda: _prove(home)) if prove else None, prove_again=again)


def _prove(home: Path) -> KvmProof:
    from belljar.image.kernel import current_kernel

    # The kernel first: without one there is nothing to try, and the error says so.
    kernel = current_kernel(home)
    from belljar.isolation.microvm.prove import kvm_proof

    return kvm_proof(kernel, home)()

"""What a cell is made from, brought together: the plan for this host, the image, the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from belljar.host import HostFacts, gather_facts
from belljar.image import Image, Kernel, Store, current_kernel
from belljar.isolation.microvm.prove import kvm_proof
from belljar.plan import ImageFacts, Plan, make_plan
from belljar.policy import LoadedPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A plan and the files it is carried out with."""

    plan: Plan
    facts: HostFacts
    image: Image
    kernel: Kernel


def gather_parts(loaded: LoadedPolicy, home: Path) -> Parts:
    """Read the host, find image and kernel, make the plan. Blocks: run it in a thread.

    Raises:
        PolicyError: the policy can't be meant. HostError: this host can't, or `belljar setup` has not run.
    """
    image = Store(home).find(loaded.policy.image)
    kernel = current_kernel(home)
    facts = gather_facts(home, prove_kvm=kvm_proof(kernel, home))
    image_facts = ImageFacts(
        digest=image.digest,
        name=loaded.policy.image,
        user=image.user,
        workdir=image.workdir,
        env=dict(image.env),
    )
    return Parts(plan=make_plan(loaded.policy, facts, image_facts), facts=facts, image=image, kernel=kernel)

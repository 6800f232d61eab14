"""What a cell is made from, brought together: the plan for this host, the image, the kernel."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TypeAlias

from belljar.dataclass import dataclass
from belljar.errors import HostError
from belljar.host import HostFacts, gather_facts
from belljar.image import Image, Kernel, Store, current_kernel
from belljar.image.store import find_images
from belljar.plan import ImageFacts, MicrovmPlan, OciPlan, make_plan
from belljar.policy import LoadedPolicy, Tier, demanded_tier


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerParts:
    """The plan of a cell of the container or gvisor tier, and the files it is carried out with."""

    plan: OciPlan
    facts: HostFacts
    image: Image


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineParts:
    """As `ContainerParts`, of the microvm tier."""

    plan: MicrovmPlan
    facts: HostFacts
    image: Image
    kernel: Kernel


Parts: TypeAlias = ContainerParts | MachineParts


def gather_parts(
    loaded: LoadedPolicy,
    home: Path,
    has_port: bool = False,  # noqa: FBT001, FBT002 - to_thread takes no keywords
) -> Parts:
    """Read the host, find the images of the cell and its range, and the kernel, make the plan.

    Blocks: run it in a thread. `has_port`: as `make_plan`.

    Raises:
        PolicyError: the policy can't be meant. HostError: this host can't, or `belljar setup` has
            not run.
    """
    image = find_images(Store(home), loaded.policy.images)[loaded.policy.image]
    kernel = _kernel(home)
    image_facts = ImageFacts(
        digest=image.digest,
        name=loaded.policy.image,
        user=image.user,
        workdir=image.workdir,
        env=dict(image.env),
        program=shlex.join(image.config.program),
        has_check=image.healthcheck is not None,
    )
    # What no plan of this policy needs isn't proven: a proof can take seconds.
    machine = demanded_tier(loaded.policy.risk, loaded.policy.tier) is Tier.MICROVM
    facts = _facts(home, kernel if machine else None, runtimes=not machine)
    plan = make_plan(loaded.policy, facts, image_facts, base=loaded.base, has_port=has_port)
    if isinstance(plan, MicrovmPlan) and not machine:  # no container is possible here
        facts = _facts(home, kernel, runtimes=True)
        plan = make_plan(loaded.policy, facts, image_facts, base=loaded.base, has_port=has_port)
    if isinstance(plan, OciPlan):
        return ContainerParts(plan=plan, facts=facts, image=image)
    # Without a kernel its error says what to do.
    return MachineParts(plan=plan, facts=facts, image=image, kernel=kernel or current_kernel(home))


def _facts(home: Path, kernel: Kernel | None, *, runtimes: bool) -> HostFacts:
    prove_kvm, prove_runtime = None, None
    if kernel is not None:
        from belljar.isolation.proofs import kvm_proof

        prove_kvm = kvm_proof(kernel, home)
    if runtimes:
        from belljar.isolation.oci import runtime_proof

        prove_runtime = runtime_proof(home)
    return gather_facts(home, prove_kvm=prove_kvm, prove_runtime=prove_runtime)


def _kernel(home: Path) -> Kernel | None:
    try:
        return current_kernel(home)
    except HostError:
        return None

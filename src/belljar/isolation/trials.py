"""Host facts with trials, which import `isolation.proofs` and both engines when made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.store.home import belljar_home

if TYPE_CHECKING:
    from belljar.host.model import HostFacts, RuntimeFact, Trial
    from belljar.image.kernel import Kernel
    from belljar.plan.oci import OciRuntime, RuntimeKind


def find_facts(
    home: Path | None = None,
    *,
    kernel: Callable[[], Kernel] | None = None,
    runtimes: bool = False,
    doubt: bool = False,
) -> HostFacts:
    """`gather_facts`, with what is unknown tried: KVM if a `kernel` is given, and `runtimes`.

    `doubt`: too, what failed.
    """
    from anyio import run

    from belljar.host.facts import gather_facts

    home = home or belljar_home()

    def prove_kvm(kernel: Callable[[], Kernel]) -> Trial:
        from belljar.isolation.proofs import boots_under

        return run(partial(boots_under, "kvm", kernel(), home=home))

    def prove_runtime(fact: RuntimeFact) -> Trial:
        from belljar.isolation.proofs import prove_runtime

        return run(partial(prove_runtime, runtime_of(fact), home=home))

    return gather_facts(
        home,
        prove_kvm=None if kernel is None else partial(prove_kvm, kernel),
        prove_runtime=prove_runtime if runtimes else None,
        doubt=doubt,
    )


def runtime_of(fact: RuntimeFact) -> OciRuntime:
    """The plan's word for a runtime of this host."""
    from belljar.plan.oci import OciRuntime

    kind: RuntimeKind = "runsc" if fact.kind == "runsc" else "runc"
    return OciRuntime(name=fact.name, kind=kind, path=fact.path, version=fact.version)

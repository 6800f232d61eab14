"""Host trials of milliseconds, and host facts with them.

`isolation.proofs` has the longer ones, and both engines: it is imported when one is made.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from belljar.package import program_path
from belljar.store.home import belljar_home

if TYPE_CHECKING:
    from belljar.host.model import HostFacts, RuntimeFact
    from belljar.host.runtimes import HostTrial
    from belljar.image.kernel import Kernel
    from belljar.plan.oci import OciRuntime, RuntimeKind

# A program that only says its version answers in milliseconds.
_TIMEOUT_S: Final = 5.0


def find_facts(
    home: Path | None = None,
    *,
    kernel: Callable[[], Kernel] | None = None,
    runtimes: bool = False,
    doubt: bool = False,
) -> HostFacts:
    """`gather_facts` with groups and namespaces tried.

    `kernel`: gives the guest kernel by which KVM is tried, if it is unknown; None: it is not tried.
    `runtimes`: they are tried, where they are unknown. `doubt`: too, what failed.
    """
    from belljar.host.facts import gather_facts
    from belljar.isolation.cgroup import try_group

    home = home or belljar_home()

    def prove_kvm(kernel: Callable[[], Kernel]) -> HostTrial:
        from anyio import run

        from belljar.isolation.proofs import boots_under

        return run(partial(boots_under, "kvm", kernel(), home=home))

    def prove_runtime(fact: RuntimeFact) -> HostTrial:
        from anyio import run

        from belljar.isolation.proofs import prove_runtime

        return run(partial(prove_runtime, runtime_of(fact), home=home))

    return gather_facts(
        home,
        try_group=try_group,
        try_namespaces=try_namespaces,
        prove_kvm=None if kernel is None else partial(prove_kvm, kernel),
        prove_runtime=prove_runtime if runtimes else None,
        doubt=doubt,
    )


def runtime_of(fact: RuntimeFact) -> OciRuntime:
    """The plan's word for a runtime of this host."""
    from belljar.plan.oci import OciRuntime

    kind: RuntimeKind = "runsc" if fact.kind == "runsc" else "runc"
    return OciRuntime(name=fact.name, kind=kind, path=fact.path, version=fact.version)


def try_namespaces() -> str:
    """Why the launcher can't make a jail's namespaces, "" when it can.

    Seccomp and security modules have the last word, and may have one for each program.
    """
    try:
        done = subprocess.run(
            [str(program_path("jail")), "--try-namespaces"],
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

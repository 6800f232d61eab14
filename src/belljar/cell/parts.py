"""The parts of a cell: the host's plan, the image, the kernel."""

from __future__ import annotations

import hashlib
import shlex
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import anyio.to_thread

from belljar.dataclass import dataclass
from belljar.errors import BelljarError, HostError, PolicyError
from belljar.events import Event, Kind, Recorder
from belljar.host.facts import gather_facts
from belljar.host.model import HostFacts, RuntimeFact, Trial
from belljar.image.kernel import Kernel, current_kernel
from belljar.image.store import Image, Store, find_images
from belljar.isolation.reap import reap, reaped_event
from belljar.ledger.rundir import RunDirectory
from belljar.plan.make import make_plan
from belljar.plan.model import ImageFacts, MicrovmPlan, OciPlan
from belljar.policy.limits import Tier, demanded_tier
from belljar.policy.loaded import LoadedPolicy
from belljar.store.home import belljar_home


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerParts:
    plan: OciPlan
    facts: HostFacts
    image: Image
    weights: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineParts:
    plan: MicrovmPlan
    facts: HostFacts
    image: Image
    kernel: Kernel
    weights: Path | None = None


Parts: TypeAlias = ContainerParts | MachineParts


async def prepare(
    policy: LoadedPolicy, *, recorder: Recorder, home: Path, has_port: bool = False
) -> Parts:
    """Reap; then make plan and template. A refusal is recorded."""
    try:
        if (policy.policy.model is None) != (policy.weights is None):
            what = "a policy with a `model` block is for a model cell only"
            hint = "use it as `--model belljar/FILE`, or with `belljar model serve`"
            raise PolicyError(what, where=policy.source, hint=hint)
        if reaped := await reap(home):
            recorder.record(reaped_event(reaped))
        parts = await anyio.to_thread.run_sync(gather_parts, policy, home, has_port)
        if isinstance(parts, MachineParts):
            from belljar.isolation.microvm.template import ensure_template, find_job

            made = (parts.plan, parts.image, parts.kernel, home, parts.weights)
            await ensure_template(await anyio.to_thread.run_sync(find_job, *made), recorder)
        else:
            from belljar.isolation.oci.trees import ensure_tree

            await ensure_tree(parts.image, home=home)
    except BelljarError as error:
        recorder.record(refused(policy, error))
        raise
    return parts


def refused(loaded: LoadedPolicy, error: BelljarError) -> Event:
    digest = hashlib.sha256(loaded.text).hexdigest()
    data = {"reason": error.what, "where": error.where, "hint": error.hint, "policy_sha256": digest}
    return Event(kind=Kind.POLICY_REFUSED, data=data)


def find_facts(
    home: Path | None = None,
    *,
    kernel: Callable[[], Kernel] | None = None,
    runtimes: bool = False,
    doubt: bool = False,
) -> HostFacts:
    """Try what `gather_facts` leaves unknown; with `doubt` also what failed."""
    store = home or belljar_home()

    # Both engines are imported only where something is tried
    def prove_kvm(find: Callable[[], Kernel]) -> Trial:
        from belljar.isolation.proofs import boots_under

        return anyio.run(partial(boots_under, "kvm", find(), home=store))

    def prove_runtime(fact: RuntimeFact) -> Trial:
        from belljar.isolation.proofs import prove_runtime

        return anyio.run(partial(prove_runtime, fact, home=store))

    return gather_facts(
        store,
        prove_kvm=None if kernel is None else partial(prove_kvm, kernel),
        prove_runtime=prove_runtime if runtimes else None,
        doubt=doubt,
    )


def facts_of(image: Image, name: str) -> ImageFacts:
    """Return what a plan needs to know of the image."""
    return ImageFacts(
        digest=image.digest,
        name=name,
        user=image.user,
        workdir=image.workdir,
        env=dict(image.env),
        program=shlex.join(image.config.program),
        has_check=image.healthcheck is not None,
    )


def gather_parts(
    loaded: LoadedPolicy,
    home: Path,
    has_port: bool = False,  # noqa: FBT001, FBT002 - to_thread takes no keywords
) -> Parts:
    """Read the host, find images and kernel, plan. It blocks."""
    image = find_images(Store(home), loaded.policy.images)[loaded.policy.image]
    kernel: Kernel | None = None
    with suppress(HostError):
        kernel = current_kernel(home)

    def plan_for(*, machine: bool, runtimes: bool) -> tuple[HostFacts, MicrovmPlan | OciPlan]:
        known = kernel if machine else None
        find = None if known is None else lambda: known
        facts = find_facts(home, kernel=find, runtimes=runtimes)
        policy, base = loaded.policy, loaded.base
        return facts, make_plan(policy, facts, image_facts, base=base, has_port=has_port)

    image_facts = facts_of(image, loaded.policy.image)
    # What no plan of this policy needs isn't proven: a proof can take seconds.
    machine = demanded_tier(loaded.policy.risk, loaded.policy.tier) is Tier.MICROVM
    facts, plan = plan_for(machine=machine, runtimes=not machine)
    if isinstance(plan, MicrovmPlan) and not machine:  # no container is possible here
        facts, plan = plan_for(machine=True, runtimes=True)
    if isinstance(plan, OciPlan):
        return ContainerParts(plan=plan, facts=facts, image=image, weights=loaded.weights)
    kernel = kernel or current_kernel(home)  # without one its error says what to do
    return MachineParts(plan=plan, facts=facts, image=image, kernel=kernel, weights=loaded.weights)


# Cells are made in the event loops of several threads.
_describing: Final = threading.Lock()


def start_run(
    kind: str, what: str | None, argv: Sequence[str], *, home: Path | None = None
) -> RunDirectory:
    """Return a run directory, which leaving seals. Entering raises `HostError`."""
    return RunDirectory(home or belljar_home(), kind, argv, what=what or " ".join(argv[:3]))


def describe(run: RunDirectory, loaded: LoadedPolicy, parts: Parts) -> None:
    """Keep the run's policies, plan and parts beside the ledger."""
    with _describing:
        first, tag = run.path / "policy.yaml", ""
        if first.exists() and first.read_bytes() != loaded.text:
            tag = f"-{hashlib.sha256(loaded.text).hexdigest()[:12]}"
        if not (run.path / f"policy{tag}.yaml").exists():
            run.write_text(f"policy{tag}.yaml", loaded.text.decode("utf-8"))
            run.write_json(f"plan{tag}.json", parts.plan.to_json())
            image = parts.image
            about = {"digest": image.digest, "names": list(image.names), "source": image.source}
            run.write_json(f"parts{tag}.json", {"image": about, **_engine_of(parts)})
        if not (run.path / "host.json").exists():
            run.write_json("host.json", parts.facts.to_json())


def _engine_of(parts: Parts) -> dict[str, Any]:
    if isinstance(parts, ContainerParts):
        runtime = parts.plan.oci.runtime
        return {"runtime": {"name": runtime.name, "version": runtime.version}}
    kernel = parts.kernel
    qemu = next((tool.version for tool in parts.facts.tools if tool.name.startswith("qemu")), None)
    guest_kernel = {"version": kernel.version, "digest": kernel.digest, "package": kernel.package}
    return {"guest_kernel": guest_kernel, "qemu": qemu}

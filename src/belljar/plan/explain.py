"""A plan in words: refusals, warnings, the whole. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from belljar.errors import HostError
from belljar.host.model import HostFacts
from belljar.plan.model import REAL, Obstacle, OciPlan, Plan
from belljar.plan.obstacles import KVM_STATES, cores_warning
from belljar.policy.limits import Tier
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.policy.model import Policy

# ---- obstacles


class ObstacleError(HostError):
    """A refusal for obstacles, the one that is shown first."""

    def __init__(self, what: str, first: Obstacle, *others: Obstacle) -> None:
        super().__init__(what, where=first.where, hint=first.hint)
        self.obstacles = (first, *others)


def refusal(refused: Mapping[Tier, Obstacle]) -> ObstacleError:
    """The error when each tier has an obstacle."""
    first, *others = refused.values()
    what = first.what
    # A size is the same matter in all of them.
    if others and not first.where.startswith("resources."):
        whys = "; ".join(f"{tier}: {each.what}" for tier, each in refused.items())
        what = f"no tier that this risk allows can run here: {whys}"
    return ObstacleError(what, first, *others)


def skipped_tiers(tier: Tier, refused: Mapping[Tier, Obstacle]) -> tuple[str, ...]:
    """A sentence for each skipped tier; `belljar doctor` has the hints."""
    return tuple(
        printable(f"using tier {tier}: {weaker} can't be used here (`belljar doctor`): {each.what}")
        for weaker, each in refused.items()
    )


# ---- warnings


def warnings_of(tier: Tier, facts: HostFacts, *, emulated: bool) -> Iterator[str]:
    """Yield what the author should know."""
    if tier is Tier.CONTAINER:
        yield (
            "shared kernel: the workload's system calls are answered by this host's kernel, so a "
            "flaw in what they reach is a way out of every layer"
        )
    if emulated:
        yield (
            f"emulated: KVM {KVM_STATES[facts.kvm.state]} ({facts.kvm.reason}). Under emulation "
            f"the VM is not a security boundary by QEMU's own policy; the jail around it is"
        )
    if tier is Tier.MICROVM and facts.cgroup.reason:
        why = printable(facts.cgroup.reason)
        yield f"not all control groups can be used ({why}); the bounds above say what holds instead"
    if tier is not Tier.MICROVM and not facts.is_root:
        yield (
            "all cells of this user share one range of ids: code that escapes from one can act on "
            "the processes of another; run as root, each cell has its own"
        )
    if warning := cores_warning(tier, facts.cores):
        yield warning


# ---- the whole plan; every dynamic string is escaped

_WIDTH: Final = 110
_LABEL_WIDTH: Final = 10
# An image's command may be a whole script.
_MAX_PROGRAM_CHARS: Final = 200


def render_plan(
    plan: Plan, *, width: int = _WIDTH, real: Callable[[str], str] = str
) -> tuple[str, ...]:
    """Return the plan's lines; `real` shows each about a real network in red."""
    import textwrap

    lines: list[str] = []
    for label, text in _blocks(plan):
        wrapped = [printable(text)]
        if label:
            head = f"  {label.strip():<{_LABEL_WIDTH}}"
            wrapped = textwrap.wrap(
                printable(text),
                width,
                initial_indent=head,
                subsequent_indent=" " * len(head),
                # Paths and digests stay whole, so that they can be copied.
                break_long_words=False,
                break_on_hyphens=False,
            )
        lines += map(real, wrapped) if text.startswith(REAL) else wrapped
    return tuple(lines)


def _blocks(plan: Plan) -> Iterator[tuple[str, str]]:
    """(label, text) pairs; a label " " continues the one above."""
    image, radius = plan.image, plan.blast_radius
    yield "policy", plan.policy.name
    yield "risk", f"{plan.risk}: at least {plan.demanded_tier}"
    how = "EMULATED (no hardware virtualisation)" if plan.emulated else "hardware virtualisation"
    if isinstance(plan, OciPlan):
        kernel = "gVisor's kernel" if plan.tier is Tier.GVISOR else "this host's kernel, SHARED"
        how = f"{kernel}, by {plan.oci.runtime.name} {plan.oci.runtime.version}"
    yield "tier", f"{plan.tier}, {how}"
    built = f"{image.name} sha256:{image.digest}" if image else f"{plan.policy.image} (not built)"
    yield "image", built
    if image and image.program:
        from belljar.compose.values import SETTLE_S

        settled = f"it has run for {SETTLE_S:g} s, or ended with status 0"
        ready = "the image's health check passes" if image.has_check else settled
        shown = printable(image.program, max_chars=_MAX_PROGRAM_CHARS)
        yield "runs", f"{shown} — before a sample starts, until {ready}"
    if (model := plan.policy.model) is not None:
        server = model.server if isinstance(model.server, str) else shlex.join(model.server)
        shown = printable(server, max_chars=_MAX_PROGRAM_CHARS)
        yield "serves", f"a model by {shown} on its own loopback, port {model.port}"
    if rights := str(plan.rights):
        yield "rights", f"inside the cell, beyond an ordinary container's: {rights}"
    yield "as", f"user {plan.user}, in {plan.workdir}, host name {plan.hostname}"
    yield from _labelled("decoys", _decoys(plan.policy))
    yield "", ""
    yield "", "The cell can, at its worst,"
    yield from _labelled("read", radius.read)
    yield from _labelled("write", radius.write)
    yield from _labelled("reach", radius.reach)
    yield from _labelled("consume", radius.consume)
    yield "", ""
    yield "", "Between it and this host, outermost first:"
    for number, layer in enumerate(plan.layers, 1):
        what = f"{layer.name} ({layer.state}) — {layer.what}; enforced by {layer.enforced_by}"
        yield str(number), what
    if plan.warnings:
        yield "", ""
        yield from _labelled("note", plan.warnings)


def _labelled(label: str, sentences: Iterable[str]) -> Iterator[tuple[str, str]]:
    for index, sentence in enumerate(sentences):
        yield (label if index == 0 else " ", sentence)


def _decoys(policy: Policy) -> Iterator[str]:
    """Each decoy, its kind and where it will be."""
    if not policy.decoys:
        return
    from belljar.signals.decoys import FILES

    for decoy in policy.decoys:
        if decoy.is_service:
            place = f"{decoy.host}:{decoy.port}"
        else:
            place = decoy.place or FILES[decoy.kind][0]
        yield f"{decoy.id} ({decoy.kind}): {place}"

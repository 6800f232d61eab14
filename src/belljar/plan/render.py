"""The plan as text: what the cell can do, the layers around it, and what is emulated. Pure; every
dynamic string is escaped.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from belljar.plan.model import REAL, ImageFacts, OciPlan, Plan
from belljar.policy import Tier
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.policy import Policy

_WIDTH: Final = 110
_LABEL_WIDTH: Final = 10
_MAX_PROGRAM_CHARS: Final = 200


def render_plan(
    plan: Plan, *, width: int = _WIDTH, real: Callable[[str], str] = str
) -> tuple[str, ...]:
    """What the cell can read, write, reach and consume, the layers between it and the host, and
    what is emulated.

    `real` is applied to each line about a real network, so that it can be shown in red.
    """
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
    yield "tier", f"{plan.tier}, {_how(plan)}"
    yield (
        "image",
        f"{image.name} sha256:{image.digest}" if image else f"{plan.policy.image} (not built)",
    )
    if image and image.program:
        yield "runs", _program(image)
    if (model := plan.policy.model) is not None:
        server = model.server if isinstance(model.server, str) else shlex.join(model.server)
        shown = printable(server, max_chars=_MAX_PROGRAM_CHARS)
        bounds = f"{model.context} tokens, {model.parallel} request(s) at a time"
        yield "serves", f"a model by {shown} on its own loopback, port {model.port}; {bounds}"
    if rights := str(plan.rights):
        yield "rights", f"inside the cell, beyond an ordinary container's: {rights}"
    yield "as", f"user {plan.user}, in {plan.workdir}, host name {plan.hostname}"
    yield from _labelled("decoys", _decoys(plan.policy))
    yield "", ""
    yield "", "The cell can, at its worst,"
    yield from _labelled("read", radius.read)
    yield from _labelled("write", radius.write)
    yield from _labelled("reach", radius.reach)
    held = (
        f"{bound.what}: {bound.most} — held by {', '.join(bound.enforced_by)}"
        for bound in plan.bounds
    )
    yield from _labelled("consume", held)
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


def _program(image: ImageFacts) -> str:
    from belljar.compose.values import SETTLE_S

    settled = f"it has run for {SETTLE_S:g} s, or ended with status 0"
    ready = "the image's health check passes" if image.has_check else settled
    shown = printable(image.program, max_chars=_MAX_PROGRAM_CHARS)
    return f"{shown} — before a sample starts, until {ready}, unless the task runs another program"


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


def _how(plan: Plan) -> str:
    if not isinstance(plan, OciPlan):
        if plan.emulated:
            return "EMULATED (no hardware virtualisation)"
        return "with hardware virtualisation"
    own = plan.tier is Tier.GVISOR
    kernel = "gVisor's kernel on this host's" if own else "this host's kernel, SHARED"
    return f"{kernel}, by {plan.oci.runtime.name} {plan.oci.runtime.version}"

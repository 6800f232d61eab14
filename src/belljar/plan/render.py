"""A plan as lines of plain text for a person. Pure; every dynamic string is escaped."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from belljar.compose.values import SETTLE_S
from belljar.plan.model import REAL, ImageFacts, OciPlan, Plan
from belljar.policy import Tier
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.policy import Policy

_WIDTH = 110
_LABEL = 10
_PROGRAM_CHARS = 200


def render_plan(
    plan: Plan, *, width: int = _WIDTH, real: Callable[[str], str] = str
) -> tuple[str, ...]:
    """What the cell can read, write, reach and consume, which layers are between it and the host,
    and what is emulated.

    `real` is applied to each line of what tells of a real network, so that it can be shown in red.
    """
    shown = (
        (_wrapped(block, width), real if block[1].startswith(REAL) else str)
        for block in _blocks(plan)
    )
    return tuple(show(line) for lines, show in shown for line in lines)


def _blocks(plan: Plan) -> Iterator[tuple[str, str]]:
    """(label, text) pairs; a label that begins with a blank continues the one above; ("", "") is an
    empty line.
    """
    yield ("policy", plan.policy.name)
    yield ("risk", f"{plan.risk}: at least {plan.demanded_tier}")
    yield (
        "tier",
        f"{plan.tier}, {_how(plan)}",
    )
    yield (
        "image",
        f"{plan.image.name} sha256:{plan.image.digest}"
        if plan.image
        else f"{plan.policy.image} (not built)",
    )
    if plan.image and plan.image.program:
        yield ("runs", _program(plan.image))
    if rights := str(plan.rights):
        yield ("rights", f"inside the cell, beyond an ordinary container's: {rights}")
    yield ("as", f"user {plan.user}, in {plan.workdir}, host name {plan.hostname}")
    yield from _labelled("decoys", _decoys(plan.policy))
    yield ("", "")
    yield ("", "The cell can, at its worst,")
    radius = plan.blast_radius
    for label, sentences in (
        ("read", radius.read),
        ("write", radius.write),
        ("reach", radius.reach),
    ):
        yield from _labelled(label, sentences)
    yield from _labelled(
        "consume",
        (
            f"{bound.what}: {bound.most} — held by {', '.join(bound.enforced_by)}"
            for bound in plan.bounds
        ),
    )
    yield ("", "")
    yield ("", "Between it and this host, outermost first:")
    for number, layer in enumerate(plan.layers, 1):
        yield (
            f"{number}",
            f"{layer.name} ({layer.state}) — {layer.what}; enforced by {layer.enforced_by}",
        )
    if plan.warnings:
        yield ("", "")
        yield from _labelled("note", plan.warnings)


def _program(image: ImageFacts) -> str:
    settled = f"it has run for {SETTLE_S:g} s, or ended with status 0"
    ready = "the image's health check passes" if image.has_check else settled
    shown = printable(image.program, max_chars=_PROGRAM_CHARS)
    return f"{shown} — before a sample starts, until {ready}, unless the task runs another program"


def _decoys(policy: Policy) -> Iterator[str]:
    """Each decoy, its kind and where it will be."""
    if not policy.decoys:
        return
    from belljar.signals.kinds import PLACES

    for decoy in policy.decoys:
        place = (
            f"{decoy.host}:{decoy.port}" if decoy.is_service else decoy.place or PLACES[decoy.kind]
        )
        yield f"{decoy.id} ({decoy.kind}): {place}"


def _how(plan: Plan) -> str:
    if isinstance(plan, OciPlan):
        kernel = (
            "gVisor's kernel on this host's"
            if plan.tier is Tier.GVISOR
            else "this host's kernel, SHARED"
        )
        return f"{kernel}, by {plan.oci.runtime.name} {plan.oci.runtime.version}"
    return (
        "EMULATED (no hardware virtualisation)" if plan.emulated else "with hardware virtualisation"
    )


def _labelled(label: str, sentences: Iterable[str]) -> Iterator[tuple[str, str]]:
    for index, sentence in enumerate(sentences):
        yield (label if index == 0 else " ", sentence)


def _wrapped(block: tuple[str, str], width: int) -> list[str]:
    label, text = block
    if not text:
        return [""]
    if not label:
        return [printable(text)]
    head = f"  {label.strip():<{_LABEL}}"
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )

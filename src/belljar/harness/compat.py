"""Can a cell stand in for the sandbox that a task names? Pure: a description of that sandbox in, what a cell takes
over from it, or why not, out.

A sandbox that promises something a cell would not keep is refused: an evaluation that runs in another environment than
its author wrote measures something else. What is honoured of a compose file is `compose`'s to say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from belljar.harness.compose import CannotKeepError, read_compose
from belljar.units import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Honoured:
    """What a cell takes over: fields for `BelljarConfig`, and notes for the operator."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a cell can't stand in, and what to do."""

    reason: str
    mend: str


Judgement = Honoured | Refused
_MEND_COMPOSE: Final = (
    "put what it needs into an image (`belljar image import`), name that image in a policy, and give it with --policy"
)


def judge(kind: str, *, has_config: bool, compose: Mapping[str, Any] | None, dockerfile: bool) -> Judgement:
    """Decide about a sandbox of type `kind`.

    `compose` is the parsed compose file or `ComposeConfig`, None when there is none; `dockerfile`: the sandbox is
    built from a Dockerfile.
    """
    if kind == "local":
        return Honoured(
            notes=("the task asked for the local sandbox, this host itself: it gets a cell with the default image",)
        )
    if dockerfile:
        return Refused(
            reason="its sandbox is built from a Dockerfile, and a cell does not build images",
            mend="build it elsewhere, `belljar image import docker-daemon:NAME`, name it in a policy, and give it with --policy",
        )
    if compose is not None:
        return judge_compose(compose)
    if kind == "docker" or not has_config:
        return Honoured(
            notes=(f"sandbox {printable(kind)} without a configuration: a cell with the policy's image stands in",)
        )
    return Refused(
        reason=f"its sandbox {printable(kind)} has a configuration that a cell can't honour",
        mend="give a policy with --policy",
    )


def judge_compose(compose: Mapping[str, Any]) -> Judgement:
    """Decide about a compose file."""
    try:
        found = read_compose(compose)
    except CannotKeepError as error:
        return Refused(reason=str(error), mend=_MEND_COMPOSE)
    changes = {name: value for name, value in found.changes.items() if name != "resources"}
    if resources := found.changes.get("resources"):
        changes["resources"] = tuple(sorted(resources.items()))
    if found.network is not None:
        changes["network"] = json.dumps(found.network, sort_keys=False)
    return Honoured(changes=changes, notes=found.notes)

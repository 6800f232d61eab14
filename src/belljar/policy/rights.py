"""Rights that a workload may ask for inside its cell beyond an ordinary container's.

The list is short on purpose. A right is in it only where it can't reach the host, nor the guest
agent, whose word counts in verdicts: see docs/policy.md for the reason of each.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from belljar.policy import fields as kinds
from belljar.policy.granted import CAPABILITIES, USUAL_CAPABILITIES
from belljar.policy.resources import Strict


def _read_capabilities(value: object) -> object:
    if isinstance(value, tuple):
        return value
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"a list of capabilities is needed, but this is {kinds.kind_of(value)}")
    names = {name.upper().removeprefix("CAP_") for name in value}
    if unknown := sorted(names - set(CAPABILITIES)):
        raise ValueError(f"{kinds.quoted(unknown[0])} is no capability of Linux")
    return tuple(sorted(names - USUAL_CAPABILITIES))


class Rights(Strict):
    """What the workload may do inside its cell beyond an ordinary container's workload."""

    capabilities: Annotated[
        tuple[str, ...],
        BeforeValidator(_read_capabilities, json_schema_input_type=list[str]),
        PlainSerializer(list, return_type=list[str]),
    ] = Field(default=(), description="Capabilities of root in the cell, beside the usual ones.")
    seccomp: Literal["default", "unconfined"] = Field(
        default="default", description="unconfined: the calls by which debuggers work."
    )
    setuid_programs: Literal["off", "auto", "on"] = Field(
        default="off",
        description="Whether `su`, `sudo` and other set-user-ID programs gain their owner's "
        "rights, as in Docker. "
        "auto: where the tier grants it; on: only such a tier will do.",
    )
    privileged: bool = Field(
        default=False,
        description="All rights that the cell's tier grants, but for set-user-ID programs.",
    )

    def common(self, other: Rights) -> Rights:
        """What both ask for. A tier's list is not known here: `privileged` stands for all of it."""
        setuid = min(self.setuid_programs, other.setuid_programs, key=_SETUID.index)
        if self.privileged or other.privileged:
            fewer = self if other.privileged else other
            return fewer.model_copy(update={"setuid_programs": setuid})
        shared = tuple(name for name in self.capabilities if name in other.capabilities)
        is_open = self.seccomp == other.seccomp == "unconfined"
        return Rights(
            capabilities=shared,
            seccomp="unconfined" if is_open else "default",
            setuid_programs=setuid,
        )


_SETUID: Final = ("off", "auto", "on")
NO_RIGHTS: Final = Rights()


def common_rights(ours: Rights | None, floor: Rights | None) -> Rights | None:
    """What a task's policy keeps under an operator's; one that says nothing bounds nothing."""
    return ours if ours is None or floor is None else ours.common(floor)


def is_within(ours: Rights | None, floor: Rights | None) -> bool:
    """Whether a task's policy asks for nothing that an operator's does not have."""
    return common_rights(ours, floor) == ours

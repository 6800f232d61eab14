"""What a check of the air gap found: one finding for each way beyond this host. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import partial
from typing import Final, Literal, TypeAlias

from belljar.dataclass import dataclass
from belljar.events import JsonValue

How: TypeAlias = Literal["tried", "looked"]
_MAX_SHOWN: Final = 6


class State(StrEnum):
    """Whether a way beyond this host exists."""

    ABSENT = "absent"
    PRESENT = "present"
    UNKNOWN = "can't tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One way. `name` is stable; `evidence` may quote this host: escape it where it is shown."""

    name: str
    state: State
    how: How
    evidence: str

    def to_json(self) -> dict[str, JsonValue]:
        """As JSON values."""
        return {
            "name": self.name,
            "state": self.state.value,
            "how": self.how,
            "evidence": self.evidence,
        }


def is_air_gapped(findings: Iterable[Finding]) -> bool:
    """Whether there are findings and all are absent."""
    found = list(findings)
    return bool(found) and all(each.state is State.ABSENT for each in found)


def judged(
    name: str, how: How, *, present: Sequence[str] = (), unknown: Sequence[str] = (), absent: str
) -> Finding:
    """Present where something is, unknown where something is unclear.

    `absent`: the evidence when neither is. Of long lists the beginning is kept.
    """
    state = State.PRESENT if present else State.UNKNOWN if unknown else State.ABSENT
    shown = [*present[:_MAX_SHOWN], *unknown[:_MAX_SHOWN]]
    if more := len(present) + len(unknown) - len(shown):
        shown.append(f"{more} more")
    return Finding(name=name, state=state, how=how, evidence="; ".join(shown) or absent)


tried = partial(judged, how="tried")
looked = partial(judged, how="looked")

"""What a check of the air gap found: one finding for each way beyond this host. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Literal, TypeAlias

from belljar.dataclass import dataclass
from belljar.events import JsonValue

How: TypeAlias = Literal["tried", "looked"]


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


def looked(
    name: str, *, present: Sequence[str] = (), unknown: Sequence[str] = (), absent: str
) -> Finding:
    """A finding by looking: present where something is, unknown where something is unclear.

    `absent`: the evidence when neither is.
    """
    state = State.PRESENT if present else State.UNKNOWN if unknown else State.ABSENT
    evidence = "; ".join([*present, *unknown]) or absent
    return Finding(name=name, state=state, how="looked", evidence=evidence)

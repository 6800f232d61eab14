"""The findings of an air-gap check: one for each way beyond this host. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import partial
from typing import Final, Literal

from belljar.dataclass import dataclass

_MAX_SHOWN: Final = 6  # of each list of evidence, which the ledger keeps


class State(StrEnum):
    """Tells if a way beyond this host exists."""

    ABSENT = "absent"
    PRESENT = "present"
    UNKNOWN = "can't tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One way. `name` is stable; `evidence` may quote this host: escape it where it is shown."""

    name: str
    state: State
    how: Literal["tried", "looked"]
    evidence: str


def is_air_gapped(findings: Iterable[Finding]) -> bool:
    """Return true if there are findings and all are absent."""
    return {each.state for each in findings} == {State.ABSENT}


def _judged(
    name: str,
    present: Sequence[str] = (),
    unknown: Sequence[str] = (),
    *,
    how: Literal["tried", "looked"],
    absent: str = "none",
) -> Finding:
    state = State.PRESENT if present else State.UNKNOWN if unknown else State.ABSENT
    shown = [*present[:_MAX_SHOWN], *unknown[:_MAX_SHOWN]]
    if more := len(present) + len(unknown) - len(shown):
        shown.append(f"{more} more")
    return Finding(name=name, state=state, how=how, evidence="; ".join(shown) or absent)


# `(name, present, unknown, absent=)`: evidence of each; `absent` is shown where there is neither.
tried = partial(_judged, how="tried")
looked = partial(_judged, how="looked")

"""A cell's end, as far as it is the same for every engine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from belljar.isolation.jail import JailEnd
from belljar.isolation.sandbox import Sandbox, death_limit

ITSELF = JailEnd(signal=None, status=137, cause="itself")
LIFETIME = JailEnd(signal=9, status=None, cause="lifetime")
OWNER = JailEnd(signal=9, status=None, cause="owner")


@pytest.mark.parametrize(
    ("end", "kills", "limit"),
    [
        (None, 3, None),
        (ITSELF, 0, None),
        (ITSELF, 1, "memory"),
        (JailEnd(signal=9, status=None, cause="lifetime"), 1, "lifetime"),
        (JailEnd(signal=9, status=None, cause="owner"), 1, None),
    ],
)
def test_the_limit_it_died_of(end: JailEnd | None, kills: int, limit: str | None) -> None:
    """The supervisor's deadline, or the kernel's kill that the cell did not survive; a kill before
    its owner ended it was not its end."""
    assert death_limit(end, fatal_oom_kills=kills) == limit


class Ended(Sandbox):
    """A sandbox whose supervisor says how it ended only after a moment."""

    def __init__(self, ended: JailEnd | None) -> None:
        self.ended = ended
        self.limits = SimpleNamespace(lifetime_s=1800)  # type: ignore[assignment]

    def end(self) -> JailEnd | None:
        """As far as the supervisor has said."""
        return None

    def final_status(self, timeout_s: float = 0.5) -> JailEnd | None:
        """After a moment."""
        return self.ended

    def explain(self, end: JailEnd) -> str:
        """The engine's word."""
        return f"engine: {end.status}"


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (None, ""),
        (LIFETIME, "its lifetime of 30m was reached"),
        (OWNER, "its owner ended it"),
        (ITSELF, "engine: 137"),
    ],
)
def test_cause_of_death(end: JailEnd | None, cause: str) -> None:
    """The deadline and the owner before what the engine found."""
    assert Ended(end).cause_of_death() == cause

"""How dangerous, and how isolated: the two scales and the rule that joins them."""

from __future__ import annotations

from enum import Enum
from typing import Final

from belljar.errors import PolicyError


class _Scale(Enum):
    """Words in order, least first.

    Compared by place, never by spelling; shown and stored as the word.
    """

    def __str__(self) -> str:
        return str(self.value)

    @property
    def place(self) -> int:
        """Position on the scale, from 0."""
        return list(type(self)).index(self)

    def __lt__(self, other: object) -> bool:
        return (
            self.place < other.place
            if isinstance(other, _Scale) and type(other) is type(self)
            else NotImplemented
        )

    def __le__(self, other: object) -> bool:
        return (
            self.place <= other.place
            if isinstance(other, _Scale) and type(other) is type(self)
            else NotImplemented
        )

    def __gt__(self, other: object) -> bool:
        return (
            self.place > other.place
            if isinstance(other, _Scale) and type(other) is type(self)
            else NotImplemented
        )

    def __ge__(self, other: object) -> bool:
        return (
            self.place >= other.place
            if isinstance(other, _Scale) and type(other) is type(self)
            else NotImplemented
        )


class Risk(_Scale):
    """What the author says could go wrong if the model tried its worst."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class Tier(_Scale):
    """How a cell is isolated, weakest first."""

    CONTAINER = "container"
    GVISOR = "gvisor"
    MICROVM = "microvm"


_LEAST: Final = {
    Risk.LOW: Tier.CONTAINER,
    Risk.MEDIUM: Tier.GVISOR,
    Risk.HIGH: Tier.MICROVM,
    Risk.CRITICAL: Tier.MICROVM,
}


def least_tier(risk: Risk) -> Tier:
    """The weakest tier this risk may run in."""
    return _LEAST[risk]


def needs_hardware(risk: Risk) -> bool:
    """Whether this risk may only run where hardware virtualisation is proven: an emulated VM is no
    security boundary by its makers' own word.
    """
    return risk is Risk.CRITICAL


def demanded_tier(risk: Risk, asked: Tier | None) -> Tier:
    """The tier a policy demands: the least its risk allows, or the higher one it asks for.

    Raises:
        PolicyError: it asks for less than its risk demands. A tier may be raised, never lowered.
    """
    least = least_tier(risk)
    if asked is not None and asked < least:
        hint = f"leave `tier` out, or write `tier: {least}`; lower `risk` only if the risk is lower"
        raise PolicyError(lowered(risk, asked), where="tier", hint=hint)
    return asked or least


def lowered(risk: Risk, asked: Tier) -> str:
    """The sentence that refuses a tier below what the risk demands."""
    return (
        f"tier `{asked}` is less than risk `{risk}` demands, which is `{least_tier(risk)}`; a "
        f"tier can only be raised"
    )

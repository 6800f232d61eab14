"""Facts on how a cell differs from what its task's author wrote. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from belljar.dataclass import dataclass, json_of
from belljar.events import JsonValue
from belljar.units import printable

MAX_NAMED: Final = 3  # Of samples with the same outcome.


class DifferenceKind(StrEnum):
    CHANGED = "changed"
    """Kept in another form: a mount copied as data."""
    DROPPED = "dropped"
    """Left out; the model can do the same without it."""
    GRANTED = "granted"
    """A right in the cell, whose kernel is its own."""
    REFUSED = "refused"
    """The task can't run as written; none of it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The `detail` is one sentence without a final stop."""

    kind: DifferenceKind
    where: str = ""
    key: str = ""
    detail: str = ""
    hint: str = ""

    def data(self) -> dict[str, JsonValue]:
        return dict(json_of(self))

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Difference:
        kind = str(data.get("kind", ""))
        return cls(
            # A ledger of a newer version may have words that this one doesn't know.
            kind=DifferenceKind(kind) if kind in set(DifferenceKind) else DifferenceKind.CHANGED,
            **{name: str(data.get(name, "")) for name in ("where", "key", "detail", "hint")},
        )


def sentences(differences: Iterable[Difference]) -> tuple[str, ...]:
    """Return sentences, equal ones merged, safe for a terminal."""
    parts: dict[tuple[DifferenceKind, str, str], dict[str, None]] = {}
    for fact in differences:
        parts.setdefault((fact.kind, fact.where, fact.detail), {})[fact.key] = None
    return tuple(
        _sentence(kind, where, keys, detail) for (kind, where, detail), keys in parts.items()
    )


def _sentence(kind: DifferenceKind, where: str, keys: Iterable[str], detail: str) -> str:
    named = [f"`{printable(key, max_chars=100)}`" for key in keys if key]
    verb = f"{', '.join(named)} {'is' if len(named) == 1 else 'are'} {kind.value}" if named else ""
    told = (printable(where, max_chars=100), verb, printable(detail))
    return ": ".join(part for part in told if part)


def samples_named(samples: Iterable[str]) -> str:
    names = [printable(each, max_chars=100) for each in samples]
    if len(names) == 1:
        return f"sample {names[0]}"
    more = len(names) - MAX_NAMED
    return f"samples {', '.join(names[:MAX_NAMED])}{f' and {more} more' if more > 0 else ''}"

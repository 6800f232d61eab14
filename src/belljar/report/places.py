"""Under which names a range's addresses were asked for. Pure."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from belljar.dataclass import dataclass
from belljar.units import printable

NAMED: Final = 3
"""Names of one address that are told: that there are others is said."""
_MAX_ADDRESSES: Final = 1024
_MAX_NAME_CHARS: Final = 255


@dataclass(slots=True)
class Places:
    """Names by the address that the range's resolver gave for them.

    Memory: 1024 addresses, `NAMED` names of each.
    """

    _names: dict[str, list[str]] = field(default_factory=dict)
    _has_others: set[str] = field(default_factory=set)

    def named(self, name: str, address: str) -> None:
        """A cell asked for this name and was given this address."""
        if address not in self._names and len(self._names) >= _MAX_ADDRESSES:
            return
        known, shown = (
            self._names.setdefault(address, []),
            printable(name.lower().rstrip("."), max_chars=_MAX_NAME_CHARS),
        )
        if shown in known:
            return
        if len(known) < NAMED:
            known.append(shown)
        else:
            self._has_others.add(address)

    def label(self, place: str) -> str:
        """`ADDRESS:PORT` (or an address) as a person knows it: by its name; by all names where one
        address has several, as a wildcard's or a catch-all's has.
        """
        address, colon, port = place.rpartition(":") if ":" in place else (place, "", "")
        names = self._names.get(address, [])
        if len(names) <= 1:
            return f"{names[0]}{colon}{port}" if names else place
        others = " and other names" if address in self._has_others else ""
        return f"{place} ({', '.join(names)}{others})"

"""What left this host: calls of models, real upstreams, other connections. Pure.

By the ledger alone. A model's provider that is not known to stay counts as one that leaves, and
missing evidence never reads as "nothing".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import field
from enum import StrEnum
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.events import Kind
from belljar.ledger import Line
from belljar.units import format_size, printable

STAYS: Final[Mapping[str, str]] = {
    "belljar": "a model in a cell",
    "mockllm": "a script in the evaluation's own process",
    "none": "no model: every call fails",
}
"""Inspect's names of the model providers whose calls leave nothing."""


class Way(StrEnum):
    """What something left by, and what its calls are."""

    MODEL = "model"
    UPSTREAM = "real upstream"
    PROCESS = "the evaluation's own process"  # whoever in it connected, or looked up a name


_PLACES: Final = {"model": Way.MODEL, "upstream": Way.UPSTREAM}  # the guard's
_DONE: Final = {"flag": "sent", "redact": "redacted", "block": "blocked", "stop": "stopped"}


@dataclass(slots=True, kw_only=True)
class Destination:
    """One place beyond this host.

    `calls`: of a model, else connections, failed ones too. `refused`: upstreams that were not
    dialled. `sent_bytes` None: unknown. `protected`: the guard's findings by class and action; of
    the actions only `flag` lets a value go on. `unscanned`: calls or parts.
    """

    way: Way
    name: str
    addresses: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    calls: int = 0
    failed: int = 0
    refused: int = 0
    cut: int = 0
    sent_bytes: int | None = 0
    protected: dict[str, Counter[str]] = field(default_factory=dict)
    unscanned: int = 0

    def sentence(self) -> str:
        """For a person; escaped, since a compromised gateway may have chosen the host."""
        text = f"{self.way}: {self.name or 'something not planned'}"
        text += f" ({', '.join(self.addresses)})" if self.addresses else ""
        text += f": {self.calls:,} {'call' if self.way is Way.MODEL else 'connection'}(s)"
        counts = {"failed": self.failed, "refused": self.refused, "cut off": self.cut}
        text += "".join(f", {count} {what}" for what, count in counts.items() if count)
        if self.way is not Way.PROCESS:
            size = "unknown" if self.sent_bytes is None else format_size(self.sent_bytes)
            found = [
                f"{cls} ×{count} {_DONE.get(action, action)}"
                for cls, actions in self.protected.items()
                for action, count in actions.items()
            ]
            found += [f"can't tell of {self.unscanned:,} not scanned"] if self.unscanned else []
            text += f", out: {size}, protected data: {', '.join(found) or 'none found'}"
        text += f". Why: {' / '.join(self.reasons)}" if self.reasons else ""
        return printable(text, max_chars=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """All of a run. `unknown`: why more may have left. `host_processes`: how often the task's own
    code started which program on this host.
    """

    destinations: tuple[Destination, ...] = ()
    unknown: tuple[str, ...] = ("there is no record",)
    host_processes: Mapping[str, int] = field(default_factory=dict)

    @property
    def claim(self) -> str:
        """`nothing` only of a whole record in which nothing left."""
        if any(each.calls for each in self.destinations):
            return "something"
        return "can't tell" if self.unknown else "nothing"

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        places = [
            {name: getattr(each, name) for name in each.__slots__} for each in self.destinations
        ]
        return {"claim": self.claim, "destinations": places, "unknown": list(self.unknown)}

    def lines(self) -> list[str]:
        """For a person."""
        lines = [f"  {each.sentence()}" for each in self.destinations]
        lines += [f"  can't tell what else: {printable(why)}" for why in self.unknown]
        return [f"\nWhat left this host: {self.claim}", *lines]


def together(parts: Iterable[Left], *, doubts: Iterable[str] = ()) -> Left:
    """What left the machines of several runs; `doubts`: what is not known of others."""
    found: dict[tuple[Way, str], Destination] = {}
    unknown = dict.fromkeys(doubts)
    programs = Counter[str]()
    for part in parts:
        unknown |= dict.fromkeys(part.unknown)
        programs.update(part.host_processes)
        for each in part.destinations:
            if (known := found.get((each.way, each.name))) is None:
                found[each.way, each.name] = deepcopy(each)
                continue
            for name in ("addresses", "reasons"):
                for word in getattr(each, name):
                    _note(getattr(known, name), word)
            for name in ("calls", "failed", "refused", "cut", "unscanned"):
                setattr(known, name, getattr(known, name) + getattr(each, name))
            both = (known.sent_bytes, each.sent_bytes)
            known.sent_bytes = None if None in both else sum(filter(None, both))
            for cls, actions in each.protected.items():
                known.protected.setdefault(cls, Counter()).update(actions)
    return Left(destinations=tuple(found.values()), unknown=tuple(unknown), host_processes=programs)


class LeftGatherer:
    """What left, event by event."""

    def __init__(self) -> None:
        self._found: dict[tuple[Way, str], Destination] = {}
        self._unmeasured: set[tuple[object, str]] = set()
        self._unknown = ["the end of the evaluation is not on record"]
        self._connections: dict[str, int] = {}
        self._programs: dict[str, int] = {}

    def take(self, line: Line) -> None:
        """One event more."""
        data = line.data
        if line.kind is Kind.MODEL_CALLED:
            model = self._of(Way.MODEL, str(data["model"]))
            model.calls, model.unscanned = model.calls + 1, model.unscanned + (not data["guarded"])
            model.sent_bytes = (model.sent_bytes or 0) + data["bytes"]
            _note(model.addresses, data["address"])
        elif line.kind is Kind.NETWORK_UPSTREAM:
            use, verdict = self._of(Way.UPSTREAM, str(data["host"])), data["verdict"]
            counted = "calls" if verdict == "dialled" else verdict
            setattr(use, counted, getattr(use, counted) + 1)
            _note(use.reasons, data["reason"])
            _note(use.addresses, data["address"])
            if verdict == "dialled":
                self._unmeasured.add((data.get("range"), use.name))
        elif line.kind is Kind.RANGE_DESTROYED and isinstance(data.get("sent_bytes"), dict):
            for host, count in data["sent_bytes"].items():
                use = self._of(Way.UPSTREAM, host)
                use.sent_bytes = (use.sent_bytes or 0) + int(count)
                self._unmeasured.discard((data.get("range"), host))
        elif line.kind in {Kind.GUARD_HIT, Kind.GUARD_UNSCANNED} and data["place"] in _PLACES:
            to = self._of(_PLACES[data["place"]], str(data.get("to", "")).removeprefix("upstream:"))
            if line.kind is Kind.GUARD_HIT:
                to.protected.setdefault(data["class"], Counter())[data["action"]] += 1
            else:
                to.unscanned += 1
        elif line.kind is Kind.RUN_EVALUATED:
            self._unknown = []
            if isinstance(data.get("connections"), dict):
                self._connections = data["connections"]
            else:
                self._unknown.append("calls of models are on record under `belljar run` only")
            if isinstance(programs := data.get("host_processes"), dict) and programs:
                named = ", ".join(f"{name} {times}×" for name, times in programs.items())
                self._unknown.append(f"the task's own code started programs on this host: {named}")
                self._programs = programs

    def end(self, *, doubt: str = "") -> Left:
        """All of it. `doubt`: why the record as a whole proves nothing."""
        for _, host in self._unmeasured:
            self._of(Way.UPSTREAM, host).sent_bytes = None
        found = [
            each
            for each in self._found.values()
            if each.way is Way.UPSTREAM or each.name.partition("/")[0] not in STAYS
        ]
        others = (
            Destination(way=Way.PROCESS, name=name, calls=int(times), sent_bytes=None)
            for name, times in self._connections.items()
        )
        return Left(
            destinations=(*found, *others),
            unknown=(*filter(None, [doubt]), *self._unknown),
            host_processes=self._programs,
        )

    def _of(self, way: Way, name: str) -> Destination:
        return self._found.setdefault((way, name), Destination(way=way, name=name))


def _note(known: list[str], new: object) -> None:
    if new and str(new) not in known:
        known.append(str(new))

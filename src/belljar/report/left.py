"""What left this host: calls of models, real upstreams, other connections. Pure.

An unknown provider counts as one that leaves.
Missing evidence never reads as "nothing".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, TypeAlias

from belljar.dataclass import dataclass, field, json_of
from belljar.events import Kind
from belljar.ledger.schema import Line
from belljar.units import format_size, printable

# Inspect's model providers whose calls leave nothing: a cell, a script in this process, no model
_IN_CELL: Final = "belljar"
STAYS: Final = (_IN_CELL, "mockllm", "none")
# Destinations, and classes of one, that the guard's findings alone name: a gateway makes them up.
MAX_FOUND: Final = 100


class Way(StrEnum):
    MODEL = "model"
    UPSTREAM = "real upstream"
    PROCESS = "the evaluation's own process"  # whoever in it connected, or looked up a name


_PLACES: Final = {"model": Way.MODEL, "upstream": Way.UPSTREAM}  # the guard's
_DONE: Final = {"flag": "sent", "redact": "redacted", "block": "blocked", "stop": "stopped"}


@dataclass(slots=True, kw_only=True)
class Destination:
    """One place beyond this host.

    `calls`: of a model, else connections and look-ups, failed ones too.
    `sent_bytes` None: unknown. `unscanned`: calls or parts.
    `protected`: findings by class and action; only `flag` lets a value go on.
    """

    way: Way
    name: str
    addresses: list[str] = field(default_factory=list)
    calls: int = 0
    sent_bytes: int | None = 0
    protected: dict[str, Counter[str]] = field(default_factory=dict)
    unscanned: int = 0

    def sentence(self) -> str:
        """Return it escaped, as a compromised gateway may choose the host."""
        text = f"{self.way}: {self.name or 'something not planned'}"
        text += f" ({', '.join(self.addresses)})" if self.addresses else ""
        text += f": {self.calls:,} {'call' if self.way is Way.MODEL else 'connection'}(s)"
        if self.way is not Way.PROCESS:
            size = "unknown" if self.sent_bytes is None else format_size(self.sent_bytes)
            found = [
                f"{cls} ×{count} {_DONE.get(action, action)}"
                for cls, actions in self.protected.items()
                for action, count in actions.items()
            ]
            found += [f"can't tell of {self.unscanned:,} not scanned"] if self.unscanned else []
            text += f", out: {size}, protected data: {', '.join(found) or 'none found'}"
        return printable(text, max_chars=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What left in a run. `unknown`: why more may have left."""

    destinations: tuple[Destination, ...] = ()
    unknown: tuple[str, ...] = ("there is no record",)

    @property
    def claim(self) -> str:
        """Return `nothing` only for a whole record in which nothing left."""
        if any(each.calls for each in self.destinations):
            return "something"
        return "can't tell" if self.unknown else "nothing"

    def to_json(self) -> dict[str, Any]:
        return {
            "claim": self.claim,
            "destinations": json_of(self.destinations),
            "unknown": list(self.unknown),
            "lines": [
                *(each.sentence() for each in self.destinations),
                *(f"can't tell what else: {printable(why)}" for why in self.unknown),
            ],
        }


_Found: TypeAlias = dict[tuple[Way, str], Destination]


def together(parts: Iterable[Left], *, doubts: Iterable[str] = ()) -> Left:
    """Return the sum of several runs; `doubts`: what is unknown of others."""
    found: _Found = {}
    unknown = dict.fromkeys(doubts)
    for part in parts:
        unknown |= dict.fromkeys(part.unknown)
        for each in part.destinations:
            known = _of(found, each.way, each.name)
            for address in each.addresses:
                _note(known.addresses, address)
            known.calls += each.calls
            known.unscanned += each.unscanned
            both = (known.sent_bytes, each.sent_bytes)
            # A sum with an unknown part is unknown, not smaller.
            known.sent_bytes = None if None in both else sum(filter(None, both))
            for cls, actions in each.protected.items():
                known.protected.setdefault(cls, Counter()).update(actions)
    return Left(destinations=tuple(found.values()), unknown=tuple(unknown))


class LeftGatherer:
    def __init__(self) -> None:
        self._found: _Found = {}
        self._unmeasured: set[tuple[object, str]] = set()
        self._unknown = ["the end of the evaluation is not on record"]
        self._has_model_cell = False

    def take(self, line: Line) -> None:
        data = line.data
        match line.kind:
            case Kind.CELL_PLANNED if data.get("model"):
                self._has_model_cell = True
            case Kind.MODEL_CALLED:
                model = _of(self._found, Way.MODEL, str(data["model"]))
                model.calls += 1
                model.unscanned += not data["guarded"]
                model.sent_bytes = (model.sent_bytes or 0) + data["bytes"]
                _note(model.addresses, data["address"])
            case Kind.NETWORK_UPSTREAM if data["verdict"] == "looked_up":
                self._by_process(str(data["host"]))
            case Kind.NETWORK_UPSTREAM if data["verdict"] == "dialled":
                use = _of(self._found, Way.UPSTREAM, str(data["host"]))
                use.calls += 1
                _note(use.addresses, data["address"])
                self._unmeasured.add((data.get("range"), use.name))
            case Kind.RANGE_DESTROYED if isinstance(data.get("sent_bytes"), dict):
                for host, count in data["sent_bytes"].items():
                    if count:
                        use = _of(self._found, Way.UPSTREAM, host)
                        use.sent_bytes = (use.sent_bytes or 0) + int(count)
                    self._unmeasured.discard((data.get("range"), host))
            case Kind.GUARD_HIT | Kind.GUARD_UNSCANNED if data["place"] in _PLACES:
                to = str(data.get("to", "")).removeprefix("upstream:")
                way = _PLACES[data["place"]]
                if (way, to) not in self._found and len(self._found) >= MAX_FOUND:
                    to = "others"
                place = _of(self._found, way, to)
                if line.kind is Kind.GUARD_HIT:
                    cls = data["class"]
                    if cls not in place.protected and len(place.protected) >= MAX_FOUND:
                        cls = "others"
                    actions = place.protected.setdefault(cls, Counter())
                    actions[data["action"]] += 1
                else:
                    place.unscanned += 1
            case Kind.RUN_EVALUATED:
                self._unknown = list(self._end_of_process(data))

    def _end_of_process(self, data: Mapping[str, Any]) -> Iterator[str]:
        """Take the process's own acts; yield why more may have left."""
        if isinstance(data.get("connections"), dict):
            for name, times in data["connections"].items():
                self._by_process(name, int(times))
        else:
            yield "calls of models are on record under `belljar run` only"
        if isinstance(programs := data.get("host_processes"), dict) and programs:
            named = ", ".join(f"{name} {times}×" for name, times in programs.items())
            yield f"the task's own code started programs on this host: {named}"
        if proxies := data.get("proxies"):
            yield f"a proxy on this host may pass on what it gets: {', '.join(map(str, proxies))}"

    def end(self, *, is_whole: bool = True) -> Left:
        """Return the total of a record. `is_whole`: it is, and it verified."""
        for _, host in self._unmeasured:
            _of(self._found, Way.UPSTREAM, host).sent_bytes = None
        # Missing events would read as "nothing left this host".
        doubts = [] if is_whole else ["the ledger is not whole, or does not verify"]
        found, unknown = list[Destination](), [*doubts, *self._unknown]
        for each in self._found.values():
            provider = each.name.partition("/")[0] if each.way is Way.MODEL else ""
            if provider not in STAYS:
                found.append(each)
            elif provider == _IN_CELL and not self._has_model_cell:
                unknown.append(f"no model cell is on record, and {each.name} was called")
        return Left(destinations=tuple(found), unknown=tuple(unknown))

    def _by_process(self, name: str, times: int = 1) -> None:
        place = _of(self._found, Way.PROCESS, name)
        place.calls += times
        place.sent_bytes = None


def _of(found: _Found, way: Way, name: str) -> Destination:
    return found.setdefault((way, name), Destination(way=way, name=name))


def _note(known: list[str], new: object) -> None:
    if new and str(new) not in known:
        known.append(str(new))

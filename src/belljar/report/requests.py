"""The requests of one range, the names of its addresses, and real upstream hosts. Pure.

What requests quote was chosen by a guest and passed a gateway that a guest may have compromised: it
is escaped and cut here, whatever was done before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, field
from datetime import UTC, datetime
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.events import Kind
from belljar.ledger import Line
from belljar.units import printable

NAMED: Final = 3
"""Names shown of one address."""
_MAX_ADDRESSES: Final = 1024
_MAX_NAME_CHARS: Final = 255


@dataclass(slots=True)
class Places:
    """Names by resolved address: at most 1024 addresses, `NAMED` names each."""

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
        """`ADDRESS:PORT` by its name, or with all names of a shared address."""
        address, colon, port = place.rpartition(":") if ":" in place else (place, "", "")
        names = self._names.get(address, [])
        if len(names) <= 1:
            return f"{names[0]}{colon}{port}" if names else place
        others = " and other names" if address in self._has_others else ""
        return f"{place} ({', '.join(names)}{others})"


FIRST: Final = 30
LAST: Final = 20
"""Of a range: the first say how it began, the last how it came out.

What lies between is in the ledger.
"""
_MAX_WHAT_CHARS: Final = 400
_MAX_WORD_CHARS: Final = 64


@dataclass(slots=True, kw_only=True)
class Request:
    """One request or connection.

    `time`: RFC 3339. `what`: a URL, or name and port. `address`: of other than HTTP. Sizes in
    bytes; `status` 0: closed without an answer, None: not recorded. `traffic_analysis`: from the
    packet record. `ambiguous`: overlapping data differed, or may be read in several ways; the first
    version is shown.
    """

    time: str
    cell: str
    method: str
    what: str
    verdict: str
    reason: str
    stand_in: str
    request_bytes: int
    status: int | None = None
    answer_bytes: int | None = None
    traffic_analysis: bool = False
    ambiguous: bool = False
    address: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


@dataclass(slots=True)
class Requests:
    """A range's requests from one source. Keeps the `FIRST` and `LAST`, counts the rest."""

    count: int = 0
    ambiguous: int = 0
    first: list[Request] = field(default_factory=list)
    last: list[Request] = field(default_factory=list)
    _unanswered: dict[int, Request] = field(default_factory=dict)
    _open: dict[tuple[str, str, str, int], int] = field(default_factory=dict)

    @property
    def between(self) -> int:
        """How many are counted only."""
        return self.count - len(self.first) - len(self.last)

    def __iter__(self) -> Iterator[Request]:
        return iter((*self.first, *self.last))

    @property
    def still_open(self) -> int:
        """Raw connections that lasted until the range ended."""
        return sum(self._open.values())

    def name_places(self, places: Places) -> None:
        """Tell connections by the names of where they went."""
        for request in self:
            if request.address:
                request.what = places.label(request.address)

    def take(self, line: Line) -> None:
        """`network.http`, `network.http.answered` and `network.stream`; others are none."""
        if line.kind is Kind.NETWORK_HTTP:
            self._add_http(line)
        elif line.kind is Kind.NETWORK_HTTP_ANSWERED:
            data = line.data
            request = self._unanswered.pop(data["exchange"], None)
            if request is not None:
                request.status, request.answer_bytes = data["status"], data["bytes"]
                request.request_bytes = max(
                    request.request_bytes, _count(data.get("request_bytes"))
                )
        elif line.kind is Kind.NETWORK_STREAM:
            self._add_stream(line)

    def _add_http(self, line: Line) -> None:
        data = line.data
        request = Request(
            time=_asked(line),
            cell=_word(data["cell"]),
            method=_word(data["method"]),
            what=printable(str(data["url"]), max_chars=_MAX_WHAT_CHARS),
            verdict=_word(data["verdict"]),
            reason=_word(data["reason"]),
            stand_in=_word(data["stand_in"]),
            request_bytes=data["bytes"],
            traffic_analysis=in_traffic_analysis(data),
            ambiguous=_is_ambiguous(data),
        )
        self._unanswered[data["exchange"]] = request
        self._add(request)

    def _add_stream(self, line: Line) -> None:
        """One is listed when it ends: its beginning has no sizes."""
        data = line.data
        key = (str(data["cell"]), str(data["stand_in"]), str(data["address"]), data["port"])
        if data.get("phase") == "opened":
            self._open[key] = self._open.get(key, 0) + 1
            return
        if (left := self._open.pop(key, 0)) > 1:
            self._open[key] = left - 1
        where = place(data)
        self._add(
            Request(
                time=_asked(line),
                cell=_word(data["cell"]),
                method="TCP",
                what=where,
                address=where,
                verdict=_word(data["verdict"]),
                reason=_word(data["reason"]),
                stand_in=_word(data["stand_in"]),
                request_bytes=data["bytes"],
                answer_bytes=_count(data.get("sent_bytes")),
                traffic_analysis=in_traffic_analysis(data),
                ambiguous=_is_ambiguous(data),
            )
        )

    def _add(self, request: Request) -> None:
        self.count += 1
        self.ambiguous += request.ambiguous
        if len(self.first) < FIRST:
            self.first.append(request)
            return
        self.last.append(request)
        if len(self.last) > LAST:
            self._forget(self.last.pop(0))

    def _forget(self, request: Request) -> None:
        for key, unanswered in list(self._unanswered.items()):
            if unanswered is request:
                del self._unanswered[key]


def place(data: Mapping[str, Any]) -> str:
    """`ADDRESS:PORT` of an event's data, or the address alone."""
    address, port = printable(str(data["address"]), max_chars=_MAX_WORD_CHARS), data["port"]
    return address if port is None else f"{address}:{port}"


def in_traffic_analysis(data: Mapping[str, Any]) -> bool:
    """Whether it was read out of the packet record when the range had ended."""
    return data.get("traffic_analysis") is True


def _is_ambiguous(data: Mapping[str, Any]) -> bool:
    return data.get("ambiguous") is True


def _asked(line: Line) -> str:
    if not in_traffic_analysis(line.data):
        return line.time
    try:
        time = datetime.fromtimestamp(float(line.data["at_s"]), UTC)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return ""
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _word(value: object) -> str:
    return printable(str(value), max_chars=_MAX_WORD_CHARS)


def _count(value: Any) -> int:  # noqa: ANN401 - a JSON value
    return value if isinstance(value, int) and value >= 0 else 0


@dataclass(slots=True, kw_only=True)
class UpstreamUse:
    """One real host over all ranges; `connections` includes `failed`, not `refused`."""

    host: str
    reasons: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    connections: int = 0
    failed: int = 0
    refused: int = 0
    cut: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    def sentence(self) -> str:
        """For a person; escaped, since a compromised gateway may have chosen the host."""
        there = f" ({', '.join(self.addresses)})" if self.addresses else ""
        more = [
            f", {count} {what}"
            for count, what in (
                (self.failed, "failed"),
                (self.refused, "refused"),
                (self.cut, "cut off"),
            )
            if count
        ]
        why = f". Why: {' / '.join(self.reasons)}" if self.reasons else ""
        text = (
            f"REAL network: {self.host or 'something not planned'}{there}: {self.connections} "
            f"connection(s)"
        )
        return printable(text + "".join(more) + why, max_chars=600)


class UpstreamGatherer:
    """The real hosts that were contacted or refused, in order of appearance."""

    def __init__(self) -> None:
        self.found: dict[str, UpstreamUse] = {}

    def take(self, line: Line) -> None:
        """One event more."""
        if line.kind is Kind.NETWORK_UPSTREAM:
            host = str(line.data["host"])
            use = self.found.setdefault(host, UpstreamUse(host=host))
            data = line.data
            use.connections += data["verdict"] == "dialled"
            use.failed += data["verdict"] == "failed"
            use.refused += data["verdict"] == "refused"
            use.cut += data["verdict"] == "cut"
            for known, new in (
                (use.reasons, str(data["reason"])),
                (use.addresses, str(data["address"])),
            ):
                if new and new not in known:
                    known.append(new)


def gather_upstreams(lines: Iterable[Line]) -> tuple[UpstreamUse, ...]:
    """The real hosts of a run, out of all of its events. Empty: nothing real was asked for."""
    gatherer = UpstreamGatherer()
    for line in lines:
        gatherer.take(line)
    return tuple(gatherer.found.values())

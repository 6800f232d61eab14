"""The requests of one range, and the names of its addresses. Pure.

A guest chose what requests quote, and may have compromised the gateway: it is escaped and cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from belljar.dataclass import dataclass, field
from belljar.events import Kind
from belljar.ledger import Line
from belljar.units import printable

NAMED: Final = 3  # names shown of one address
_MAX_ADDRESSES: Final = 1024
_MAX_NAME_CHARS: Final = 255


@dataclass(slots=True)
class Places:
    """Names by resolved address: at most 1024 addresses, `NAMED` names each."""

    _names: dict[str, list[str]] = field(default_factory=dict)
    _has_others: set[str] = field(default_factory=set)

    def named(self, name: str, address: str) -> None:
        """A name resolved to this address."""
        if address not in self._names and len(self._names) >= _MAX_ADDRESSES:
            return
        known = self._names.setdefault(address, [])
        shown = printable(name.lower().rstrip("."), max_chars=_MAX_NAME_CHARS)
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
"""Requests shown of a range; the ledger has the others."""
_MAX_WHAT_CHARS: Final = 400
_MAX_WORD_CHARS: Final = 64


@dataclass(slots=True, kw_only=True)
class ReportedRequest:
    """One request or connection.

    `time`: RFC 3339. `what`: a URL, or name and port. `address`: of other than HTTP. `status` 0:
    closed without an answer, None: not recorded.
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
    between_cells: bool = False
    address: str = ""


@dataclass(slots=True)
class Requests:
    """A range's requests; keeps `FIRST` and `LAST`, counts the rest."""

    count: int = 0
    first: list[ReportedRequest] = field(default_factory=list)
    last: list[ReportedRequest] = field(default_factory=list)
    _pending: dict[int, ReportedRequest] = field(default_factory=dict)
    _open: dict[tuple[str, str, str, int], int] = field(default_factory=dict)

    @property
    def between(self) -> int:
        """Count of those not kept."""
        return self.count - len(self.first) - len(self.last)

    def __iter__(self) -> Iterator[ReportedRequest]:
        return iter((*self.first, *self.last))

    @property
    def still_open(self) -> int:
        """Count of raw connections open when the range ended."""
        return sum(self._open.values())

    def name_places(self, places: Places) -> None:
        """Label connections with the names of their addresses."""
        for request in self:
            if request.address:
                request.what = places.label(request.address)

    def take(self, line: Line) -> None:
        """One event more; kinds other than HTTP and streams are ignored."""
        data = line.data
        if line.kind is Kind.NETWORK_HTTP:
            what = printable(str(data["url"]), max_chars=_MAX_WHAT_CHARS)
            request = _request(line, method=_word(data["method"]), what=what)
            self._pending[data["exchange"]] = request
            self._add(request)
        elif line.kind is Kind.NETWORK_HTTP_ANSWERED:
            pending = self._pending.pop(data["exchange"], None)
            if pending is not None:
                pending.status, pending.answer_bytes = data["status"], data["bytes"]
                size = _count(data.get("request_bytes"))
                pending.request_bytes = max(pending.request_bytes, size)
        elif line.kind is Kind.NETWORK_STREAM:
            key = (str(data["cell"]), str(data["stand_in"]), str(data["address"]), data["port"])
            if data.get("phase") == "data":  # its bytes are in the last event too
                return
            if data.get("phase") == "opened":  # listed when it ends: only then it has sizes
                self._open[key] = self._open.get(key, 0) + 1
                return
            if data.get("phase") == "closed" and (left := self._open.pop(key, 0)) > 1:
                self._open[key] = left - 1
            where = place(data)
            request = _request(line, method="TCP", what=where)
            request.address, request.answer_bytes = where, _count(data.get("sent_bytes"))
            self._add(request)

    def _add(self, request: ReportedRequest) -> None:
        self.count += 1
        if len(self.first) < FIRST:
            self.first.append(request)
            return
        self.last.append(request)
        if len(self.last) > LAST:
            dropped = self.last.pop(0)
            for key, pending in list(self._pending.items()):
                if pending is dropped:
                    del self._pending[key]


def _request(line: Line, *, method: str, what: str) -> ReportedRequest:
    data = line.data
    return ReportedRequest(
        time=line.time,
        cell=_word(data["cell"]),
        method=method,
        what=what,
        verdict=_word(data["verdict"]),
        reason=_word(data["reason"]),
        stand_in=_word(data["stand_in"]),
        request_bytes=data["bytes"],
        between_cells=is_between_cells(data),
    )


def place(data: Mapping[str, Any]) -> str:
    """`ADDRESS:PORT` of an event's data, or the address alone."""
    address, port = printable(str(data["address"]), max_chars=_MAX_WORD_CHARS), data["port"]
    return address if port is None else f"{address}:{port}"


def is_between_cells(data: Mapping[str, Any]) -> bool:
    """Whether it is traffic between two cells; older runs read it from the packet record."""
    return data.get("between_cells") is True or data.get("traffic_analysis") is True


def times_of(data: Mapping[str, Any]) -> int:
    """How many packets or refusals an event stands for."""
    count = data.get("count", 1)
    return count if isinstance(count, int) and count > 0 else 1


def _word(value: object) -> str:
    return printable(str(value), max_chars=_MAX_WORD_CHARS)


def _count(value: Any) -> int:  # noqa: ANN401 - a JSON value
    return value if isinstance(value, int) and value >= 0 else 0

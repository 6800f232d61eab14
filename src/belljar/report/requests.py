"""The requests of one range, out of its events: the first and the last of them, and how many lie between. Pure.

What they quote is a guest's word, and it comes through a gateway that a guest may have taken over: escaped and cut here, whatever was done before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from belljar.events import Kind
from belljar.ledger import Line
from belljar.units import printable

FIRST: Final = 30
LAST: Final = 20
"""Of a range: the first say how it began, the last how it came out. What lies between is in the ledger."""
_MAX_WHAT_CHARS: Final = 400
_MAX_WORD_CHARS: Final = 64
_MAX_ADDRESSES: Final = 1024


@dataclass(slots=True, kw_only=True)
class Request:
    """One request or connection. `time` is when it was asked, RFC 3339; `what` a URL, or a name (else an address) and port. Sizes in bytes, of bodies or of what each
    side sent; `status` and `answer_bytes` are None where none is on record, status 0: closed without an answer. `hindsight`: read out of the packet record.
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
    hindsight: bool = False

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


@dataclass(slots=True)
class Requests:
    """Those of one range. Memory: `FIRST` + `LAST` of them, and as many addresses' names as a range has."""

    count: int = 0
    first: list[Request] = field(default_factory=list)
    last: list[Request] = field(default_factory=list)
    _unanswered: dict[tuple[bool, int], Request] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _open: dict[tuple[str, str, str, int], int] = field(default_factory=dict)

    @property
    def between(self) -> int:
        """How many are counted only."""
        return self.count - len(self.first) - len(self.last)

    def __iter__(self) -> Iterator[Request]:
        return iter((*self.first, *self.last))

    @property
    def still_open(self) -> int:
        """Raw connections with a beginning on record and no end: they lasted as long as the range."""
        return sum(self._open.values())

    def named(self, name: str, address: str) -> None:
        """The range's resolver gave this address for this name."""
        if len(self._names) < _MAX_ADDRESSES:
            self._names.setdefault(address, printable(name, max_chars=_MAX_WHAT_CHARS))

    def place(self, address: str, port: object) -> str:
        """`name:port`, where the cell had asked for the name."""
        where = self._names.get(address) or printable(address, max_chars=_MAX_WORD_CHARS)
        return where if port is None else f"{where}:{port}"

    def take(self, line: Line) -> None:
        """`network.http`, `network.http.answered` and `network.stream`; others are none."""
        if line.kind is Kind.NETWORK_HTTP:
            self._add_http(line)
        elif line.kind is Kind.NETWORK_HTTP_ANSWERED:
            self._add_answer(line.data)
        elif line.kind is Kind.NETWORK_STREAM:
            self._add_stream(line)

    def _add_http(self, line: Line) -> None:
        data = line.data
        hindsight = data.get("hindsight") is True
        request = Request(
            time=_asked(line),
            cell=_word(data["cell"]),
            method=_word(data["method"]),
            what=printable(str(data["url"]), max_chars=_MAX_WHAT_CHARS),
            verdict=_word(data["verdict"]),
            reason=_word(data["reason"]),
            stand_in=_word(data["stand_in"]),
            request_bytes=data["bytes"],
            hindsight=hindsight,
        )
        self._unanswered[hindsight, data["exchange"]] = request
        self._add(request)

    def _add_answer(self, data: Mapping[str, Any]) -> None:
        request = self._unanswered.pop((data.get("hindsight") is True, data["exchange"]), None)
        if request is not None:
            request.status, request.answer_bytes = data["status"], data["bytes"]
            request.request_bytes = max(request.request_bytes, _count(data.get("request_bytes")))

    def _add_stream(self, line: Line) -> None:
        """One is listed when it ends: its beginning has no sizes."""
        data = line.data
        key = (str(data["cell"]), str(data["stand_in"]), str(data["address"]), data["port"])
        if data.get("phase") == "opened":
            self._open[key] = self._open.get(key, 0) + 1
            return
        if (left := self._open.pop(key, 0)) > 1:
            self._open[key] = left - 1
        self._add(
            Request(
                time=_asked(line),
                cell=_word(data["cell"]),
                method="TCP",
                what=self.place(str(data["address"]), data["port"]),
                verdict=_word(data["verdict"]),
                reason=_word(data["reason"]),
                stand_in=_word(data["stand_in"]),
                request_bytes=data["bytes"],
                answer_bytes=_count(data.get("sent_bytes")),
                hindsight=data.get("hindsight") is True,
            )
        )

    def _add(self, request: Request) -> None:
        self.count += 1
        if len(self.first) < FIRST:
            self.first.append(request)
            return
        self.last.append(request)
        if len(self.last) > LAST:
            self._forget(self.last.pop(0))

    def _forget(self, request: Request) -> None:
        """Its answer, if it still comes, is nobody's."""
        for key, unanswered in list(self._unanswered.items()):
            if unanswered is request:
                del self._unanswered[key]


def _asked(line: Line) -> str:
    """When it was: what was read out of the packet record says so itself."""
    if line.data.get("hindsight") is not True:
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

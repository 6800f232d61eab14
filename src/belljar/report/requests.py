"""The requests of one range, and the names of its addresses. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Final

from belljar.dataclass import dataclass, field
from belljar.events import Kind
from belljar.ledger.schema import Line
from belljar.report.reading import Kept, is_between_cells, place, size_of, word

NAMED: Final = 3  # names shown of one address
# A cell can look up any number of names; the rest are told by address.
_MAX_ADDRESSES: Final = 1024
# RFC 1035's bound of a name; a guest's may have any.
_MAX_NAME_CHARS: Final = 255
# Of each range; those between are counted.
FIRST: Final = 30
# Requests shown of a range; the ledger has the others.
LAST: Final = 20
# Addresses carry data out: their beginning says where to.
_MAX_WHAT_CHARS: Final = 400
# Enough for every method and protocol; a guest may make up longer ones.
_MAX_WORD_CHARS: Final = 64


@dataclass(slots=True)
class Places:
    """Names by resolved address: at most 1024 addresses, `NAMED` names each."""

    _names: dict[str, list[str]] = field(default_factory=dict)

    def named(self, name: str, address: str) -> None:
        """A name resolved to this address."""
        if address not in self._names and len(self._names) >= _MAX_ADDRESSES:
            return
        known = self._names.setdefault(address, [])
        shown = word(name.lower().rstrip("."), _MAX_NAME_CHARS)
        if shown not in known and len(known) <= NAMED:  # one more says that there are others
            known.append(shown)

    def label(self, place: str) -> str:
        """`ADDRESS:PORT` by its name, or with all names of a shared address."""
        address, colon, port = place.rpartition(":") if ":" in place else (place, "", "")
        names = self._names.get(address, [])
        if len(names) <= 1:
            return f"{names[0]}{colon}{port}" if names else place
        others = " and other names" if len(names) > NAMED else ""
        return f"{place} ({', '.join(names[:NAMED])}{others})"


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


class Requests(Kept[ReportedRequest]):
    """A range's requests."""

    def __init__(self) -> None:
        super().__init__(FIRST, LAST)
        self._pending: dict[int, ReportedRequest] = {}
        self._open = Counter[tuple[str, str, str, int]]()

    @property
    def still_open(self) -> int:
        """Count of raw connections open when the range ended."""
        return self._open.total()

    def name_places(self, places: Places) -> None:
        """Label connections with the names of their addresses."""
        for request in self:
            if request.address:
                request.what = places.label(request.address)

    def take(self, line: Line) -> None:
        """One event more; kinds other than HTTP and streams are ignored."""
        data = line.data
        if line.kind is Kind.NETWORK_HTTP:
            self._pending[data["exchange"]] = self._add(
                line, word(data["method"], _MAX_WORD_CHARS), word(data["url"], _MAX_WHAT_CHARS)
            )
        elif line.kind is Kind.NETWORK_HTTP_ANSWERED:
            if (pending := self._pending.pop(data["exchange"], None)) is not None:
                pending.status, pending.answer_bytes = data["status"], data["bytes"]
                size = size_of(data.get("request_bytes"))
                pending.request_bytes = max(pending.request_bytes, size)
        elif line.kind is Kind.NETWORK_STREAM and data.get("phase") != "data":
            # Listed when it ends: only then it has sizes, those of its pieces included
            key = (str(data["cell"]), str(data["stand_in"]), str(data["address"]), data["port"])
            if data.get("phase") == "opened":
                self._open[key] += 1
                return
            if data.get("phase") == "closed" and (left := self._open.pop(key, 0)) > 1:
                self._open[key] = left - 1
            request = self._add(line, "TCP", place(data))
            request.address, request.answer_bytes = request.what, size_of(data.get("sent_bytes"))

    def _add(self, line: Line, method: str, what: str) -> ReportedRequest:
        data = line.data
        cell, verdict, reason, stand_in = (
            word(data[name], _MAX_WORD_CHARS) for name in ("cell", "verdict", "reason", "stand_in")
        )
        request = ReportedRequest(
            time=line.time,
            cell=cell,
            method=method,
            what=what,
            verdict=verdict,
            reason=reason,
            stand_in=stand_in,
            request_bytes=data["bytes"],
            between_cells=is_between_cells(data),
        )
        self.add(request)
        if len(self._pending) > FIRST + LAST:  # of what is not kept no answer is waited for
            # By identity: two requests of a guest may be equal.
            kept = set(map(id, self))
            self._pending = {n: each for n, each in self._pending.items() if id(each) in kept}
        return request

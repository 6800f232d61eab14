"""What the host has seen of a range, and what a case demands to find there. Pure: each kind of
evidence says in a sentence what it misses, or nothing.

None of it is a guest's word: events are of the gateway and the supervisor, frames are those that the supervisor recorded.
`Word` alone looks at what the prober said; it stands beside others, for what leaves no trace when it is refused (a socket that isn't given).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeVar

from tests.security.egress.frames import ICMP, IGMP, TCP, UDP, Frame

_PROTOCOLS = {"tcp": TCP, "udp": UDP, "icmp": ICMP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    events: tuple[tuple[str, Mapping[str, Any]], ...]
    opened_s: float = 0.0
    flushed_s: float = math.inf
    frames: tuple[Frame, ...]
    counters: Mapping[str, int]
    macs: Mapping[str, str]
    gateways: frozenset[str]
    words: Mapping[str, str]

    def of(self, kind: str, **having: object) -> list[Mapping[str, Any]]:
        """The data of the events of a kind that have this."""
        told = (data for each, data in self.events if each == kind)
        return [each for each in told if all(each.get(name) == it for name, it in having.items())]

    def sent(self, cell: str) -> list[Frame]:
        return [frame for frame in self.frames if frame.from_mac == self.macs[cell]]

    def forged(self) -> list[Frame]:
        known = {*self.macs.values(), *self.gateways}
        return [frame for frame in self.frames if frame.from_mac not in known]

    def got(self, cell: str) -> list[Frame]:
        return [frame for frame in self.frames if frame.to_mac == self.macs[cell]]


class Evidence(Protocol):
    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        """What is missing or too much; empty when it is all there."""
        ...


_E = TypeVar("_E", bound=Evidence)


def fill(evidence: _E, facts: Mapping[str, str]) -> _E:
    """With the addresses and names of this run where braces stand."""
    changes: dict[str, Any] = {}
    for field in fields(evidence):  # type: ignore[arg-type]
        value = getattr(evidence, field.name)
        if isinstance(value, str):
            changes[field.name] = value.format_map(facts)
        elif isinstance(value, tuple):
            changes[field.name] = tuple(_filled(item, facts) for item in value)
    return replace(evidence, **changes)  # type: ignore[type-var]


def _filled(item: Any, facts: Mapping[str, str]) -> Any:  # noqa: ANN401 - text or evidence
    return item.format_map(facts) if isinstance(item, str) else fill(item, facts)


@dataclass(frozen=True)
class Refused:
    """The packet was seen, refused for this reason (in an event), and answered by that alone."""

    reason: str
    address: str
    port: str = "{port}"
    protocol: str = "tcp"

    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        """A flow's event, then the record's own refusal, then silence."""
        problem = _event(seen, cell, self.reason, "refused", self.protocol, self.address, self.port)
        if problem:
            return problem
        answers = _answers(seen, cell, self.protocol, self.address, self.port)
        if not answers:
            return f"no refusal left for {self.protocol} {self.address}:{self.port}"
        real = [frame for frame in answers if not frame.is_refusal]
        return f"{self.address}:{self.port} answered: {real[0]}" if real else ""


@dataclass(frozen=True)
class RefusedEach:
    """`Refused`, by TCP and by UDP, of each of several addresses."""

    reasons: tuple[str, ...]
    addresses: str
    port: str = "{port}"

    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        for address in self.addresses.split(","):
            for protocol in ("tcp", "udp"):
                words = (*self.reasons, *(("udp",) if protocol == "udp" else ()))
                lacks = [
                    Refused(reason, address, self.port, protocol).lacks(seen, case, cell)
                    for reason in words
                ]
                if all(lacks):
                    return lacks[0]
        return ""


@dataclass(frozen=True)
class Dropped:
    """The packet was seen, dropped for this reason, and nothing came back at all."""

    reason: str
    address: str
    port: str = "{port}"
    protocol: str = "udp"

    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        problem = _event(seen, cell, self.reason, "dropped", self.protocol, self.address, self.port)
        if problem:
            return problem
        answers = _answers(seen, cell, self.protocol, self.address, self.port)
        return f"{self.address}:{self.port} answered: {answers[0]}" if answers else ""


@dataclass(frozen=True)
class NeverSent:
    """No such frame ever left the cell: `what` names it."""

    what: str
    address: str = ""
    port: str = "0"

    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        found = [frame for frame in (*seen.sent(cell), *seen.forged()) if self._is(frame)]
        return f"the cell sent {self.what}: {found[0]}" if found else ""

    def _is(self, frame: Frame) -> bool:
        match self.what:
            case "ipv6":
                return frame.kind == 0x86DD
            case "arp":
                return frame.kind == 0x0806
            case "not ip":
                return frame.kind not in (0x0800, 0x0806, 0x86DD)
            case "options":  # IGMP has one of its own
                return frame.has_options and frame.protocol != IGMP
            case "source":
                return frame.source == self.address
            case "protocol":
                return frame.protocol == int(self.port)
            case "to":
                return frame.target == self.address and int(self.port) in (0, frame.target_port)
            case _:
                raise ValueError(self.what)


@dataclass(frozen=True)
class Reached:
    """What is allowed: it answered with data, so that refusals beside it mean something."""

    address: str
    port: str
    protocol: str = "tcp"

    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        answers = _answers(seen, cell, self.protocol, self.address, self.port)
        return (
            ""
            if any(frame.payload and not frame.is_refusal for frame in answers)
            else f"{self.address}:{self.port} did not answer"
        )


@dataclass(frozen=True)
class Forwarded:
    """A connection to a target cell, let through and on record."""

    address: str
    port: str

    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        return _event(seen, cell, "connection", "allowed", "tcp", self.address, self.port)


@dataclass(frozen=True)
class Dns:
    """The resolver was asked for exactly this name, and its record has always this answer."""

    name: str
    answer: str
    kind: str = "A"
    times: int = 1
    longest_label: int = 0
    entropy: float = 0.0

    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        """As many events as there were questions, all with the same answer."""
        asked = {"name": self.name, "type": self.kind}
        found = seen.of("network.dns", cell=cell, **asked)
        if len(found) < self.times:
            return f"{len(found)} queries for {self.kind} of {self.name!r} on record"
        answers = {data["answer"] for data in found} - {self.answer}
        if answers:
            return f"{self.name} was answered with {answers}"
        told = max((data["longest_label"], data["entropy"]) for data in found)
        if told[0] < self.longest_label or told[1] < self.entropy:
            return f"label and entropy of {self.name} are recorded as {told}"
        return ""


@dataclass(frozen=True)
class DnsBelow:
    """As many different names below this one were asked for, and each got this answer."""

    suffix: str
    answer: str
    least: int

    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        """Every name is on record: by itself, or (beyond a rate) in a list with others."""
        events = seen.of("network.dns", cell=cell)
        below = [data for data in events if data["name"].endswith(self.suffix)]
        listed = {name for data in events for name in data.get("names", ())}
        names = {data["name"] for data in below}
        names |= {name for name in listed if name.endswith(self.suffix)}
        answers = {data["answer"] for data in below}
        if answers - {self.answer}:
            return f"answers below {self.suffix}: {answers}"
        return (
            "" if len(names) >= self.least else f"{len(names)} names below {self.suffix} on record"
        )


@dataclass(frozen=True)
class Http:
    """A request whose URL has this in it is on record, with this verdict."""

    url: str
    reason: str = ""
    stand_in: str = ""

    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        found = [data for data in seen.of("network.http", cell=cell) if self.url in data["url"]]
        if not found:
            return f"no request with {self.url!r} on record"
        verdict = "refused" if self.reason else "allowed"
        for data in found:
            if data["verdict"] != verdict or not _begins(data["reason"], self.reason):
                return f"{data['url']}: {data['verdict']}, {data['reason']!r}"
            if self.stand_in and data["stand_in"] != self.stand_in:
                return f"{data['url']} was {data['stand_in']}'s"
        return ""


def _begins(reason: str, wanted: str) -> bool:
    return reason.startswith(wanted) and bool(reason) == bool(wanted)


@dataclass(frozen=True)
class Tls:
    """A ClientHello with this name at this address is on record, with this verdict."""

    sni: str
    address: str
    reason: str = ""
    only: bool = True

    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        hellos = seen.of("network.tls", cell=cell, address=self.address)
        found = [data for data in hellos if (data["sni"] or "") == self.sni]
        if not found:
            return f"no hello with {self.sni!r} at {self.address} on record"
        wanted = ("refused" if self.reason else "allowed", self.reason)
        others = [data for data in found if (data["verdict"], data["reason"]) != wanted]
        if not others or (not self.only and len(others) < len(found)):
            return ""
        return f"{self.sni!r} at {self.address}: {others[0]['verdict']}, {others[0]['reason']!r}"


@dataclass(frozen=True)
class Sunk:
    """A connection to nobody ended in the range's sink, which got bytes."""

    address: str
    port: str = "{port}"

    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        place = {"address": self.address, "port": int(self.port)}
        found = seen.of("network.stream", cell=cell, reason="sink", **place)
        if not found:
            return f"the sink has no connection to {self.address}:{self.port}"
        return "" if any(data["bytes"] for data in found) else "the sink got nothing"


@dataclass(frozen=True)
class Attempt:
    """A stand-in recorded that something was tried; somewhere in the event stands this text."""

    what: str
    text: str = ""

    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        found = any(self.text in repr(data) for data in seen.of("network.attempt", what=self.what))
        return "" if found else f"no attempt to {self.what} ({self.text!r}) on record"


@dataclass(frozen=True)
class Counted:
    reason: str

    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        return "" if seen.counters.get(self.reason) else f"no packet counted as {self.reason}"


@dataclass(frozen=True)
class Word:
    """The prober's word begins with one of these: for what leaves no trace when it is refused."""

    beginnings: tuple[str, ...]

    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        said = seen.words.get(case, "")
        return "" if said.startswith(self.beginnings) else f"the prober said {said!r}"


@dataclass(frozen=True)
class Either:
    """One of these ways, all of it: tiers refuse the same thing at different places."""

    ways: tuple[Evidence, ...]

    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        found = [way.lacks(seen, case, cell) for way in self.ways]
        return "" if "" in found else "; ".join(found)


@dataclass(frozen=True)
class Both:
    parts: tuple[Evidence, ...]

    def lacks(self, seen: Seen, case: str, cell: str) -> str:
        return "; ".join(lack for part in self.parts if (lack := part.lacks(seen, case, cell)))


def unasked_answers(
    seen: Seen,
    cell: str,
    answering: frozenset[tuple[str, str, int]],
    *,
    has_sink: bool,
    serves: frozenset[int] = frozenset(),
) -> list[Frame]:
    """Frames to a cell that are neither a refusal nor from an address and port that the plan lets
    answer, nor to a port at which the cell itself serves (`serves`). With a sink, which is anybody,
    they have at least no data. Between the end of the rules and that of the range its own cells may
    reach each other: nobody else."""
    own = {
        sent.source for name in seen.macs for sent in seen.sent(name) if sent.at_s >= seen.flushed_s
    }
    return [
        frame
        for frame in seen.got(cell)
        if not frame.is_refusal
        and not (frame.at_s >= seen.flushed_s and frame.source in own)
        and (_NAMES.get(frame.protocol, ""), frame.source, frame.source_port) not in answering
        and not (frame.protocol == TCP and frame.target_port in serves)
        and not (has_sink and frame.protocol == TCP and not frame.payload)
    ]


_NAMES = {number: name for name, number in _PROTOCOLS.items()}


def _event(
    seen: Seen, cell: str, reason: str, verdict: str, protocol: str, address: str, port: str
) -> str:
    number = int(port) if protocol in ("tcp", "udp") else None
    wanted = {"cell": cell, "protocol": protocol, "address": address, "port": number}
    found = seen.of("network.flow", **wanted)
    if not found:
        return f"no flow of {protocol} to {address}:{port} on record"
    if any((data["reason"], data["verdict"]) != (reason, verdict) for data in found):
        return f"{protocol} to {address}:{port} was {found[0]['verdict']}: {found[0]['reason']}"
    sent = {(frame.protocol, frame.target) for frame in seen.sent(cell)}
    is_kept = (_PROTOCOLS[protocol], address) in sent
    return "" if is_kept else f"no frame to {address} in the packet record"


def _answers(seen: Seen, cell: str, protocol: str, address: str, port: str) -> list[Frame]:
    """What came to the cell from there, or about there."""
    number = _PROTOCOLS[protocol]
    about = (number, address, 0 if protocol == "icmp" else int(port))
    return [
        frame
        for frame in seen.got(cell)
        if (frame.protocol, frame.source, frame.source_port) == about
        or (
            frame.protocol == ICMP
            and frame.icmp[0] == 3
            and (
                frame.quoted[:2] == about[:2]
                and (protocol == "icmp" or frame.quoted[2] == about[2])
            )
        )
    ]

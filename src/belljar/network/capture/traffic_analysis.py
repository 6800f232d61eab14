"""Requests between cells as events, read from the packet record of a range that has ended.

The gateway records a request before it answers. Cells reach each other directly: their packets are
recorded as they pass, and analysed here afterwards.
This runs in a process of its own, a fork of the fork server, confined like a gateway.
An event reports what was left out, for each bound that was reached.
"""

from __future__ import annotations

import heapq
import os
import resource
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import BinaryIO, Final, NoReturn

from belljar.capture import body_of
from belljar.dataclass import from_json
from belljar.events import Body, Event, JsonValue, Kind
from belljar.network import ipc
from belljar.network.capture import conversations
from belljar.network.capture.conversations import (
    Conversation,
    ConversationTracker,
    read_segments,
)
from belljar.network.capture.exchanges import (
    NO_HTTP,
    NOT_FURTHER,
    Exchange,
    Rest,
    exchanges,
)
from belljar.network.capture.packets import BUFFER_BYTES, sent_frames
from belljar.network.confine import Confinement, confine
from belljar.network.gateway.reporter import (
    MAX_RECORDED_HEADERS,
    MAX_RECORDED_URL_CHARS,
    printable_headers,
)
from belljar.network.owner.budget import Budget
from belljar.plan.addresses import RangeLayout
from belljar.plan.network import NetworkPlan
from belljar.units import printable

MAX_EVENTS: Final = 40_000
"""Of a range: what follows is in the packet record alone, and counted."""
MAX_FRAMES: Final = 10_000_000  # Read of a packet record; a rest is reported.
MAX_STEPS: Final = 1_000_000
"""Of the parser, for all connections of a record (see `exchanges.MAX_STEPS`).

Of further ones only the first bytes are reported.
"""
_WEB: Final = frozenset({"http", "tcp"})
_TOO_LONG: Final = f"{NOT_FURTHER}: more bytes than are kept of a connection"
_MISSING: Final = "bytes are missing from the packet record"
_NO_END: Final = "it has no end, or none that was read"
_STRAY: Final = "segment"
IN_PACKETS: Final = "it is in the packet record alone"


def seen_exchanges(
    records: Sequence[BinaryIO],
    layout: RangeLayout,
    plan: NetworkPlan,
    *,
    range_id: str,
    budget: Budget | None = None,
) -> Iterator[Event]:
    """What cells sent to target cells' ports, in the order of the connections.

    Two events for each request (`network.http`, `network.http.answered`), one for what is no HTTP
    (`network.stream`), for segments outside of any connection (`network.flow`) and for each bound
    that was reached (`limit.hit`). `budget`: what the range has left. Raises `ValueError` for no
    packet record.
    """
    reader = _RecordReader(layout, plan)
    before = budget = budget or Budget.of(plan.bounds.recorded_bytes)
    for event in reader.read(records):
        named = Event(
            kind=event.kind,
            data={"range": range_id, **event.data, "traffic_analysis": True},
            bodies=event.bodies,
        )
        budget, taken = (
            budget.take(named) if budget.events - before.events < MAX_EVENTS else (budget, None)
        )
        reader.left_out["events"] += taken is None
        reader.is_full |= taken is None
        if taken is not None:
            yield taken
    reader.left_out["whole_events"] += budget.cut_events - before.cut_events
    for name, count in sorted(reader.left_out.items()):
        if count:
            yield _limit(range_id, name, count, plan)


def _limit(range_id: str, name: str, count: int, plan: NetworkPlan) -> Event:
    values = {
        "connections": conversations.MAX_CONVERSATIONS,
        "bytes": conversations.MAX_STREAM_BYTES,
        "events": MAX_EVENTS,
        "frames": MAX_FRAMES,
        "steps": MAX_STEPS,
        "whole_events": plan.bounds.recorded_bytes,
    }
    data: dict[str, JsonValue] = {
        "limit": f"traffic_analysis_{name}",
        "value": values[name],
        "count": count,
    }
    return Event(
        kind=Kind.LIMIT_HIT,
        data={**data, "effect": IN_PACKETS, "range": range_id, "traffic_analysis": True},
    )


class _RecordReader:
    """One range's record: served ports, and what was left out."""

    def __init__(self, layout: RangeLayout, plan: NetworkPlan) -> None:
        self.left_out: Counter[str] = Counter()
        self._cells: Mapping[str, str] = {port.address: port.name for port in layout.cells}
        self.is_full = False
        self._body_bytes = plan.bounds.recorded_body_bytes
        self._kept_bytes = plan.bounds.recorded_stream_bytes
        self._open = {
            layout.cell(target.id).address: target.id
            for target in plan.reached_cells
            if target.all_ports
        }
        self._named = {
            (layout.cell(target.id).address, port.number): (target.id, port.protocol in _WEB)
            for target in plan.reached_cells
            for port in target.ports
        }
        self._number = 0
        self._steps = MAX_STEPS

    def read(self, records: Sequence[BinaryIO]) -> Iterator[Event]:
        """All of it; `left_out` is right when it has ended."""
        tracker = ConversationTracker(lambda end: end in self._named or end[0] in self._open)
        frames = heapq.merge(*map(sent_frames, records), key=itemgetter(0))
        for segment in read_segments(islice(frames, MAX_FRAMES)):
            tracker.take(segment)
        self.left_out["frames"] += next(frames, None) is not None
        for conversation in tracker.finish():
            if self.is_full:  # to parse costs processor time, reported or not
                self.left_out["connections"] += 1
                continue
            self.left_out["bytes"] += conversation.cut_bytes
            end = conversation.server
            server, is_web = self._named.get(end, (self._open.get(end[0], ""), True))
            if server and is_web:
                yield from self._events_of(server, conversation)
        self.left_out += tracker.left_out
        for (source, target, port), (count, size) in tracker.strays.items():
            data: dict[str, JsonValue] = {
                "cell": self._cells.get(source, ""),
                "protocol": "tcp",
                "address": target,
                "port": port,
                "verdict": "allowed",
                "reason": _STRAY,
                "bytes": size,
                "count": count,
                "name": self._cells.get(target, ""),
            }
            yield Event(kind=Kind.NETWORK_FLOW, data=data)

    def _events_of(self, stand_in: str, conversation: Conversation) -> Iterator[Event]:
        found, rest = exchanges(conversation, self._steps, self._body_bytes)
        self._steps -= rest.steps
        self.left_out["steps"] += rest.is_out_of_steps
        common: dict[str, JsonValue] = {
            "cell": self._cells.get(conversation.client[0], ""),
            "stand_in": stand_in,
        }
        if conversation.ambiguous:
            common["ambiguous"] = True
        for exchange in found:
            self._number += 1
            numbered = {**common, "exchange": self._number}
            yield _request_event(numbered, conversation, exchange)
            if exchange.response is not None:
                yield _response_event(numbered, conversation, exchange, exchange.response)
        if (
            rest.sent
            or rest.received
            or conversation.has_gap
            or conversation.cut_bytes
            or (conversation.ambiguous and not found)
        ):
            yield self._unread_event(common, conversation, rest)

    def _unread_event(
        self, common: Mapping[str, JsonValue], conversation: Conversation, rest: Rest
    ) -> Event:
        reason = rest.reason
        if reason == NO_HTTP and conversation.has_gap:
            reason = _MISSING
        elif reason == NO_HTTP and conversation.cut_bytes:
            reason = _TOO_LONG
        data: dict[str, JsonValue] = {
            **common,
            "address": conversation.server[0],
            "port": conversation.server[1],
            "verdict": "allowed",
            "reason": reason,
            "bytes": len(rest.sent),
            "sent_bytes": len(rest.received),
            "at_s": round(conversation.began_s, 6),
        }
        # The server's view, as a gateway has it
        streams = (("received", rest.sent), ("sent", rest.received))
        bodies = tuple(body_of(name, text, self._kept_bytes) for name, text in streams if text)
        return Event(kind=Kind.NETWORK_STREAM, data=data, bodies=bodies)


def _request_event(
    common: Mapping[str, JsonValue], conversation: Conversation, exchange: Exchange
) -> Event:
    host = exchange.host or f"{conversation.server[0]}:{conversation.server[1]}"
    url = exchange.target if "://" in exchange.target else f"http://{host}{exchange.target}"
    data: dict[str, JsonValue] = {
        **common,
        "method": printable(exchange.method, max_chars=32),
        "url": printable(url, max_chars=MAX_RECORDED_URL_CHARS),
        "verdict": "allowed",
        "reason": "a target cell's port",
        "address": conversation.server[0],
        "port": conversation.server[1],
        "bytes": exchange.request.total_bytes,
        **_headers(exchange.request_headers),
        "at_s": round(conversation.began_s, 6),
    }
    bodies = (exchange.request,) if exchange.request.total_bytes else ()
    return Event(kind=Kind.NETWORK_HTTP, data=data, bodies=bodies)


def _response_event(
    common: Mapping[str, JsonValue],
    conversation: Conversation,
    exchange: Exchange,
    response: Body,
) -> Event:
    data: dict[str, JsonValue] = {
        **common,
        "status": exchange.status,
        "bytes": response.total_bytes,
        "duration_ms": round((conversation.ended_s - conversation.began_s) * 1000, 3),
        **_headers(exchange.response_headers),
        **({"reason": _NO_END} if exchange.is_cut else {}),
    }
    bodies = (response,) if response.total_bytes else ()
    return Event(kind=Kind.NETWORK_HTTP_ANSWERED, data=data, bodies=bodies)


def _headers(headers: tuple[tuple[bytes, bytes], ...]) -> dict[str, JsonValue]:
    # A trailer may have very many, and each costs the reader's time.
    pairs, _ = printable_headers(headers[:MAX_RECORDED_HEADERS])
    dropped = len(headers) - len(pairs)
    return {"headers": pairs, **({"dropped_headers": dropped} if dropped else {})}


_DESCRIPTORS: Final = 16
_GRACE_S: Final = 5


def run_reader(fds: list[int], parent: int) -> NoReturn:
    """`fds`: the owner's socket, the document, standard error, the record's files."""
    owner = socket.socket(fileno=fds[0])
    ipc.wait_for_go(owner, fds[2])
    document = ipc.from_file(fds[1])
    processor_s, uid = int(document["processor_s"]), document["uid"]
    resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s + _GRACE_S))
    memory_bytes = int(document["memory_bytes"])
    confine(
        Confinement(uid=uid, directories={}, memory_bytes=memory_bytes, descriptors=_DESCRIPTORS),
        parent=parent,
    )
    events = seen_exchanges(
        [os.fdopen(fd, "rb", BUFFER_BYTES) for fd in fds[3:]],
        from_json(RangeLayout, document["layout"]),
        from_json(NetworkPlan, document["network"]),
        range_id=str(document["range"]),
        budget=Budget(**document["budget"]),
    )
    number = 1
    for event in events:
        _send(owner, number, ipc.Item(event.kind, event.data, event.bodies))
        number += 1
    _send(owner, number, ipc.Item(ipc.READY, {}))
    os._exit(0)


def _send(owner: socket.socket, number: int, item: ipc.Item) -> None:
    for piece in ipc.encode_event(number, item):
        owner.send(piece)

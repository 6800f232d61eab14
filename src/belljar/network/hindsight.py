"""What one cell asked of another by HTTP, as events, out of the packet record of a range that has ended. Pure.

The gateway records what is asked of it before it answers. Cells speak to each other directly: the packets are on record as they pass, and read here afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from belljar.events import Body, Event, JsonValue, Kind, Trust
from belljar.network.conversations import Conversation, conversations, read_segments
from belljar.network.exchanges import Exchange, SeenBody, exchanges
from belljar.plan.addresses import RangeLayout
from belljar.plan.network import NetworkPlan
from belljar.units import printable

MAX_EVENTS: Final = 20_000
"""Of a range: what comes after is in the packet record alone."""
_WEB: Final = frozenset({"http", "tcp"})
_MAX_URL_CHARS: Final = 2048
_MAX_HEADERS: Final = 64
_MAX_HEADER_CHARS: Final = 512


def seen_exchanges(record: bytes, layout: RangeLayout, plan: NetworkPlan) -> Iterator[Event]:
    """Two events for each request that a cell sent to a target cell's port: `network.http` and, where it was answered, `network.http.answered`. In the order of the
    connections; `hindsight` in their data says that they were recorded afterwards, `at_s` when they happened. Raises `ValueError` when it is no packet record."""
    cells = {port.address: port.name for port in layout.cells}
    serving = {
        (layout.cell(target.id).address, port.number): target.id
        for target in plan.reached_cells
        for port in target.ports
        if port.protocol in _WEB
    }
    number = 0
    for conversation in conversations(read_segments(record)):
        stand_in = _server(conversation, serving, plan, cells)
        if not stand_in:
            continue
        for exchange in exchanges(conversation):
            number += 1
            if number > MAX_EVENTS // 2:
                return
            cell = cells.get(conversation.client[0], "")
            yield _asked(number, cell, stand_in, conversation, exchange)
            if exchange.response is not None:
                yield _answered(number, cell, stand_in, conversation, exchange, exchange.response)


def _server(
    conversation: Conversation, serving: Mapping[tuple[str, int], str], plan: NetworkPlan, cells: Mapping[str, str]
) -> str:
    named = serving.get(conversation.server, "")
    open_to_all = {target.id for target in plan.reached_cells if target.all_ports}
    owner = cells.get(conversation.server[0], "")
    return named or (owner if owner in open_to_all else "")


def _asked(number: int, cell: str, stand_in: str, conversation: Conversation, exchange: Exchange) -> Event:
    host = exchange.host or f"{conversation.server[0]}:{conversation.server[1]}"
    url = exchange.target if "://" in exchange.target else f"http://{host}{exchange.target}"
    data: dict[str, JsonValue] = {
        "cell": cell,
        "exchange": number,
        "stand_in": stand_in,
        "method": printable(exchange.method, max_chars=32),
        "url": printable(url, max_chars=_MAX_URL_CHARS),
        "verdict": "allowed",
        "reason": "a target cell's port",
        "bytes": exchange.request.total_bytes,
        "headers": _headers(exchange.request_headers),
        "hindsight": True,
        "at_s": round(conversation.began_s, 6),
    }
    bodies = (_body("request", exchange.request),) if exchange.request.total_bytes else ()
    return Event(kind=Kind.NETWORK_HTTP, data=data, trust=Trust.HOST_OBSERVED, bodies=bodies)


def _answered(
    number: int, cell: str, stand_in: str, conversation: Conversation, exchange: Exchange, response: SeenBody
) -> Event:
    data: dict[str, JsonValue] = {
        "cell": cell,
        "exchange": number,
        "stand_in": stand_in,
        "status": exchange.status,
        "bytes": response.total_bytes,
        "duration_ms": round((conversation.ended_s - conversation.began_s) * 1000, 3),
        "headers": _headers(exchange.response_headers),
        "hindsight": True,
    }
    bodies = (_body("response", response),) if response.total_bytes else ()
    return Event(kind=Kind.NETWORK_HTTP_ANSWERED, data=data, trust=Trust.HOST_OBSERVED, bodies=bodies)


def _headers(headers: tuple[tuple[bytes, bytes], ...]) -> list[JsonValue]:
    shown = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers[:_MAX_HEADERS]]
    return [[printable(name, max_chars=64), printable(value, max_chars=_MAX_HEADER_CHARS)] for name, value in shown]


def _body(name: str, seen: SeenBody) -> Body:
    return Body(name=name, content=seen.kept, total_bytes=seen.total_bytes, sha256=seen.sha256)

"""HTTP/2, within TLS only: hypercorn's protocol, one frame at a time, behind a flood guard.

Frames: RFC 9113 sections 4.1 and 6, RFC 7541 section 6.3.
Floods: RFC 9113 section 10.5, CVE-2023-44487 (rapid reset), CVE-2024-27316
(CONTINUATION), CVE-2019-9512 to 9518.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import hpack
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.typing import ConnectionState

from belljar.network.gateway.config import Bounds
from belljar.network.gateway.http1 import RefusedRequest, keep_unread, make_room
from belljar.network.gateway.middleware import INCOMING
from belljar.network.gateway.site import LATE_BODY, Account, Incoming

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER_BYTES: Final = 9
BYTES_PER_WINDOW_UPDATE: Final = 1024  # Clients update both windows every few KiB of a long answer.
DATA, HEADERS, SETTINGS, CONTINUATION = 0, 1, 4, 9
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
_PRIORITY_FLAG: Final = 0x20


class FloodGuard:
    """Counts frames; its owner counts `requests` and `sent_bytes`."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._skip = len(PREFACE)
        self._head = bytearray()
        self._control = 0
        self._block = 0
        self.requests = 0
        self.sent_bytes = 0

    def feed(self, data: bytes) -> str:
        """Why to end the connection now, or ""."""
        at = 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            step = min(FRAME_HEADER_BYTES - len(self._head), len(data) - at)
            self._head += data[at : at + step]
            at += step
            if len(self._head) == FRAME_HEADER_BYTES and (problem := self._frame()):
                return problem
        return ""

    def _frame(self) -> str:
        length, kind, flags = int.from_bytes(self._head[:3], "big"), self._head[3], self._head[4]
        self._head.clear()
        self._skip = length
        if kind in (HEADERS, CONTINUATION):
            self._block = length + (self._block if kind == CONTINUATION else 0)
            if self._block > self._bounds.head_bytes:
                return "a header block over the bound"
        if (
            kind == HEADERS
            or (kind == DATA and (length or flags & END_STREAM))
            or (kind == CONTINUATION and length)
        ):
            return ""
        self._control += 1
        earned = self.sent_bytes // BYTES_PER_WINDOW_UPDATE
        allowed = (
            earned
            + self._bounds.h2_control_frames
            + self.requests * self._bounds.h2_control_frames_per_request
        )
        return "too many control frames" if self._control > allowed else ""


_NAMES: Final = {
    DATA: "data",
    HEADERS: "headers",
    2: "priority",
    3: "rst_stream",
    SETTINGS: "settings",
    5: "push_promise",
    6: "ping",
    7: "goaway",
    8: "window_update",
    CONTINUATION: "continuation",
}
# Those that a frame of this type may have.
_FLAGS: Final = {DATA: 0x9, HEADERS: 0x2D, SETTINGS: 0x1, 6: 0x1, CONTINUATION: END_HEADERS}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, or what can't be one."""

    raw: bytes

    @property
    def kind(self) -> int:
        """Its type; -1 of the preface and fragments."""
        return self.raw[3] if len(self.raw) >= FRAME_HEADER_BYTES and self.raw != PREFACE else -1

    @property
    def name(self) -> str:
        """Its type's name."""
        return _NAMES.get(self.kind, "unknown")

    @property
    def flags(self) -> int:
        """As they came."""
        return self.raw[4]

    @property
    def stream(self) -> int:
        """Its stream, the reserved bit included."""
        return int.from_bytes(self.raw[5:FRAME_HEADER_BYTES], "big")

    @property
    def payload(self) -> bytes:
        """All behind its header."""
        return self.raw[FRAME_HEADER_BYTES:]

    @property
    def padded(self) -> tuple[bytes, bytes, bytes]:
        """Of DATA or HEADERS: prefix, content, padding."""
        payload, front, back = self.payload, 0, 0
        if self.kind != CONTINUATION and self.flags & PADDED:
            front, back = 1, payload[0] if payload else 0
        if self.kind == HEADERS and self.flags & _PRIORITY_FLAG:
            front += 5
        end = max(front, len(payload) - back)
        return payload[:front], payload[front:end], payload[end:]

    def has_known_header(self, streams: frozenset[int] | set[int]) -> bool:
        """Whether the header holds no free choice."""
        return not self.flags & ~_FLAGS.get(self.kind, 0) and self.stream in streams


class Frames:
    """Cuts bytes into preface and frames."""

    def __init__(self, max_payload_bytes: int) -> None:
        self._max_payload_bytes = max_payload_bytes
        self._buffer = bytearray()
        self._has_preface = False

    def feed(self, data: bytes) -> None:
        """More bytes."""
        self._buffer += data

    def next(self) -> Frame | None:
        """The next frame; an oversized one in part."""
        buffer = self._buffer
        if not self._has_preface:
            if len(buffer) < len(PREFACE) and PREFACE.startswith(buffer):
                return None
            self._has_preface = True
            return self._cut(len(PREFACE) if buffer.startswith(PREFACE) else len(buffer))
        if len(buffer) < FRAME_HEADER_BYTES:
            return None
        length = int.from_bytes(buffer[:3], "big")
        end = FRAME_HEADER_BYTES + length if length <= self._max_payload_bytes else len(buffer)
        return self._cut(end) if len(buffer) >= end else None

    def _cut(self, end: int) -> Frame:
        raw = bytes(self._buffer[:end])
        del self._buffer[:end]
        return Frame(raw)

    @property
    def rest(self) -> bytes:
        """What is not whole."""
        return bytes(self._buffer)

    def take_rest(self) -> bytes:
        """Take the fragment."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest


def account_for_header(account: Account, frame: Frame, streams: set[int]) -> bytes:
    """Account for a request's frame; return its content."""
    if frame.has_known_header(streams):
        account.frame(FRAME_HEADER_BYTES)
    else:
        account.remain(f"h2_{frame.name}", frame.raw[:FRAME_HEADER_BYTES])
    front, content, padding = frame.padded
    account.remain(
        "h2_priority" if frame.kind == HEADERS and len(front) >= 5 else "h2_padding", front
    )
    account.remain("h2_padding", padding)
    return content


def size_updates(block: bytes) -> int:
    """Bytes of table size updates at a block's front."""
    at = 0
    while at < len(block) and block[at] & 0xE0 == 0x20:
        is_long = block[at] & 0x1F == 0x1F
        at += 1
        while is_long and at < len(block):
            is_long = bool(block[at] & 0x80)
            at += 1
    return at


class KeepingDecoder(hpack.Decoder):
    """Keeps the last block's fields, even of a refused one."""

    fields: list[tuple[bytes, bytes]] = []  # noqa: RUF012 - replaced, never changed

    def decode(self, data: bytes, raw: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002
        """See hpack."""
        self.fields = []
        found = super().decode(data, raw)
        self.fields = [(bytes(name), bytes(value)) for name, value in found] if raw else []
        return found


class Http2(H2Protocol):
    """HTTP/2, within TLS only."""

    def guard(
        self, on_refused: Callable[[str], Awaitable[None]], bounds: Bounds, account: Account
    ) -> None:
        """`on_refused`: awaited before a refusal leaves."""
        self._on_refused, self._bounds, self._account = on_refused, bounds, account
        self._floods = FloodGuard(bounds)
        self._frames = Frames(self.connection.max_inbound_frame_size)
        self._block = bytearray()
        self._incoming: dict[int, Incoming] = {}
        self._open: set[int] = set()
        self._block_stream = 0
        self._next_stream = 1
        self._decoder = self.connection.decoder = KeepingDecoder(bounds.head_bytes)
        codes = h2.settings.SettingCodes
        offered = {
            code: self.connection.local_settings[code]
            for code in (codes.MAX_CONCURRENT_STREAMS, codes.MAX_HEADER_LIST_SIZE)
        }
        # Without ENABLE_CONNECT_PROTOCOL: no CONNECT of any kind is taken.
        self.connection.local_settings = h2.settings.Settings(client=False, initial_values=offered)

    awaits_head = False  # An endless head is ended with the idle connection.

    def abandon(self) -> None:
        """Take no more of any answer."""
        for stream in self.streams.values():
            stream.closed = True

    @property
    def open_streams(self) -> list[Any]:
        """Streams of unanswered requests."""
        return list(self.streams.values())

    def record_unfinished_message(self) -> None:
        """It has no WebSockets."""

    @property
    def has_unparsed(self) -> bool:
        """Whether a fragment of frame or head has come."""
        return bool(self._block or self._frames.rest)

    def take_unclaimed(self) -> bytes:
        """Take fragments of frame and head."""
        found = bytes(self._block) + self._frames.take_rest()
        self._block.clear()
        return found

    def take_refused(self) -> bytes:
        """Nothing: a refused head is the remainder's."""
        return b""

    def leave(self) -> None:
        """Give what is left to the remainder."""
        for incoming in self._incoming.values():
            incoming.leave()
        self._account.remain("unparsed", self.take_unclaimed())

    def sent(self, size: int) -> None:
        """Counts what was sent."""
        self._floods.sent_bytes += size

    async def refuse(self, refused: RefusedRequest) -> None:
        """Ends the connection."""
        await self._go_away(str(refused), h2.errors.ErrorCodes.PROTOCOL_ERROR)

    async def handle(self, event: Event) -> None:
        """hypercorn's, behind the flood guard."""
        if not isinstance(event, RawData):
            await super().handle(event)
            return
        if not event.data:
            return
        self._frames.feed(event.data)
        if problem := self._floods.feed(event.data):
            await self._go_away(problem, h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            return
        while (frame := self._frames.next()) is not None:
            try:
                events = self.connection.receive_data(frame.raw)
            except h2.exceptions.ProtocolError as error:
                self._account.remain("headers", bytes(self._block))
                self._block.clear()
                self._account.remain(f"h2_{frame.name}", frame.raw)
                if frame.kind in (HEADERS, CONTINUATION):
                    self._account.show_fields(self._decoder.fields)
                await self._on_refused(f"{type(error).__name__}: {error}")
                await self._flush()
                await self.send(Closed())
                return
            self._account_for(frame, events)
            for item in events:
                await self._handle_one(item)

    def _account_for(self, frame: Frame, events: list[h2.events.Event]) -> None:
        if frame.raw == PREFACE:
            self._account.frame(len(PREFACE))
        elif frame.kind == DATA:
            data = account_for_header(self._account, frame, self._open)
            # The library's own copy is what the exchange gets; none of a request that was reset.
            received = next(
                (event.data for event in events if isinstance(event, h2.events.DataReceived)), None
            )
            incoming = self._incoming.get(frame.stream)
            if received and incoming is not None:
                incoming.came(received)
            else:
                self._account.remain(LATE_BODY, data)
        elif frame.kind in (HEADERS, CONTINUATION):
            streams = (
                self._open | {self._next_stream} if frame.kind == HEADERS else {self._block_stream}
            )
            self._block_stream = frame.stream
            self._block += account_for_header(self._account, frame, streams)
            if frame.flags & END_HEADERS:
                self._account_for_block(events)
        elif frame.name != "unknown" and frame.has_known_header(self._open | {0}):
            self._account.frame(FRAME_HEADER_BYTES)
            self._account.remain(f"h2_{frame.name}", frame.payload)
        else:
            self._account.remain(f"h2_{frame.name}", frame.raw)

    def _account_for_block(self, events: list[h2.events.Event]) -> None:
        block = bytes(self._block)
        self._block.clear()
        request = next(
            (event for event in events if isinstance(event, h2.events.RequestReceived)), None
        )
        if request is None or request.stream_id is None:
            self._account.remain("trailers", block)
            self._account.show_fields(self._decoder.fields)
            return
        updates = size_updates(block)
        self._account.remain("hpack", block[:updates])
        self._incoming[request.stream_id] = Incoming(
            self._account, block[updates:], self._decoder.fields, is_text=False
        )
        self._open.add(request.stream_id)
        self._next_stream = request.stream_id + 2

    async def _handle_one(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
            # Its answer was complete before its body: the window is given back, or the connection
            # would starve.
            with contextlib.suppress(h2.exceptions.ProtocolError):
                self.connection.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id
                )
            await self._flush()
            return
        if isinstance(event, h2.events.StreamReset):
            keep_unread(self.streams.get(event.stream_id))
        await self._handle_events([event])
        if isinstance(event, h2.events.RequestReceived) and not self.streams:
            # hypercorn has just reported that it is busy; the request was refused.
            await self.send(Updated(idle=True))

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        problem = _h2_problem(request.headers, self._bounds)
        if not problem:
            incoming = self._incoming[request.stream_id]
            self.connection_state = ConnectionState({**self.connection_state, INCOMING: incoming})
            await super()._create_stream(request)
            return
        await self._on_refused(problem)
        self.connection.reset_stream(request.stream_id, h2.errors.ErrorCodes.PROTOCOL_ERROR)
        await self._flush()

    async def _close_stream(self, stream_id: int) -> None:
        stream = self.streams.get(stream_id)
        self._open.discard(stream_id)
        if stream is not None:
            make_room(stream)
            self._floods.requests += stream.state.name == "CLOSED"
        await super()._close_stream(stream_id)
        if stream is not None and stream.state.name == "CLOSED":
            # An application that has answered doesn't read the end either: a piece of the body that
            # waited for room has it again.
            make_room(stream)

    async def _send_data(self, stream_id: int) -> None:
        await super()._send_data(stream_id)
        stream = self.connection.streams.get(stream_id)
        if stream_id in self.stream_buffers or stream is None or stream.closed:
            return
        # The answer is complete and the request is not: the client learns that no more of it is
        # wanted (RFC 9113 section 8.1), or it would wait for room to send.
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.connection.reset_stream(stream_id, h2.errors.ErrorCodes.NO_ERROR)
        await self._flush()

    async def _go_away(self, reason: str, code: h2.errors.ErrorCodes) -> None:
        await self._on_refused(reason)
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.connection.close_connection(code)
        await self._flush()
        await self.send(Closed())


def _h2_problem(headers: Any, bounds: Bounds) -> str:  # noqa: ANN401
    """Why a request's head is refused, or ""."""
    fields: dict[bytes, bytes] = dict(headers)
    if fields.get(b":method", b"").upper() == b"CONNECT":
        return "CONNECT"
    if len(headers) > bounds.headers:
        return "too many header fields"
    if not all(
        0x20 < byte < 0x7F for byte in fields.get(b":path", b" ") + fields.get(b":method", b" ")
    ):
        return "the path or the method has other bytes than printable ASCII"
    if fields.get(b":scheme") != b"https":
        return "the scheme is not https"
    return ""

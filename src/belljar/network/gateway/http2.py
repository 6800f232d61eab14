"""HTTP/2, within TLS only: hypercorn's protocol, one frame at a time.

hypercorn's `H2Protocol` is no public interface: see `belljar.network.gateway.http`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import hpack
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.typing import ConnectionState

from belljar.network.gateway.account import LATE_BODY, Account, Incoming
from belljar.network.gateway.bounds import Bounds
from belljar.network.gateway.h2_frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    Frame,
    Frames,
    account_for_control,
    account_for_header,
    size_updates,
)
from belljar.network.gateway.h2_guard import PREFACE, FloodGuard
from belljar.network.gateway.http1 import RefusedRequest
from belljar.network.gateway.middleware import INCOMING
from belljar.network.gateway.unread import keep_unread, make_room


class KeepingDecoder(hpack.Decoder):
    """Keeps the last header block's fields: the library throws those away that break its rules."""

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
        """Says what to call before a refusal leaves, and where bytes are counted."""
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

    awaits_head = False
    """Its frames are not a head's bytes alone; a head that never ends is ended with the idle
    connection.
    """

    def abandon(self) -> None:
        """Takes no more of any answer: nobody is left who would send it, for which each
        would wait.
        """
        for stream in self.streams.values():
            stream.closed = True

    @property
    def open_streams(self) -> list[Any]:
        """Those of requests that are not answered."""
        return list(self.streams.values())

    def break_off(self) -> None:
        """There is no WebSocket within it."""

    @property
    def has_unparsed(self) -> bool:
        """Whether something has come that is no whole frame, or no whole head."""
        return bool(self._block or self._frames.rest)

    def take_unclaimed(self) -> bytes:
        """What has come and is no whole frame, or no whole head; no longer held."""
        found = bytes(self._block) + self._frames.take_rest()
        self._block.clear()
        return found

    def take_refused(self) -> bytes:
        """Nothing: where one request is refused the others go on, and its head is the
        remainder's.
        """
        return b""

    def leave(self) -> None:
        """Nothing more comes, and nobody answers any more: what is left goes to the remainder."""
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
        else:
            account_for_control(self._account, frame, self._open)

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
            # hypercorn has just said that it is busy; the request was refused.
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
            # Who has answered doesn't read that this is the end either: a piece of the body that
            # waited for room has it again.
            make_room(stream)

    async def _send_data(self, stream_id: int) -> None:
        await super()._send_data(stream_id)
        stream = self.connection.streams.get(stream_id)
        if stream_id in self.stream_buffers or stream is None or stream.closed:
            return
        # The answer is complete and the request is not: the client is told that no more of it is
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
    """Why a request's head is not taken; empty when it is."""
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

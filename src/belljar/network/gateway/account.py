"""What became of every byte that a cell sent on one connection. Pure: no I/O.

Each received byte ends up in one of three places: *recorded* in another event of the connection,
*framing* that follows from what it frames, or the *remainder*, which `network.connection` keeps.
What is in none of them is missing, and the connection is not accounted for.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from belljar.capture import Capture
from belljar.events import Body, JsonValue, Kind
from belljar.network.gateway.reporter import Item
from belljar.network.gateway.shown import shown

TOO_MUCH: Final = "too many bytes outside of requests, messages and streams"
PART_BYTES: Final = 32 << 10
"""Of the remainder: so much has an event of its own while the connection goes on."""
KEPT_BYTES: Final = 64 << 10
"""Kept of the remainder in one event: above `PART_BYTES` by more than one HTTP/2 frame."""
EARNED_PER_RECORD_BYTES: Final = 64
"""Allowed beyond the bound for each record: a WebSocket message has a mask of 4 bytes, a request
priorities and its share of pings."""
EARNED_SHARE: Final = 32
"""One byte in so many that pass: a window update of 13 bytes comes every KiB at most."""

LATE_BODY_BYTES: Final = 512 << 10
"""Of a request that is refused or answered while its body comes, an ordinary client sends on until
it hears of it: HTTP/2's window, or in HTTP/1.1 the pieces that wait for the application. Not
counted in the bound.
"""
LATE_BODY: Final = "late_body"


class Account:
    """One connection's bytes. `free_bytes`: the bound of the remainder, before what is earned.

    `sent_bytes`: what the gateway sent. `reason`: why the gateway ended the connection.
    """

    def __init__(self, number: int = 0, free_bytes: int = 16 << 10) -> None:
        self.number = number
        self.received_bytes = self.recorded_bytes = self.framing_bytes = self.remainder_bytes = 0
        self.sent_bytes = self.unread_bytes = 0
        self.is_at_end = False
        self.reason = ""
        self._free_bytes = free_bytes
        self._records = self._requests = 0
        self._start = time.monotonic()
        self._kinds: Counter[str] = Counter()
        self._part: Capture | None = None
        self._fields: Capture | None = None
        self._holders: list[Callable[[], None]] = []

    def before_end(self, leave: Callable[[], None]) -> None:
        """Calls `leave` once before the last event: it gives what it still holds to the
        remainder.
        """
        self._holders.append(leave)

    def receive(self, size: int) -> None:
        """So many bytes came from the socket."""
        self.received_bytes += size

    def record(self, size: int) -> None:
        """So many are in an event of their own."""
        self.recorded_bytes += size
        self._records += 1

    def begin_request(self) -> None:
        """One more has a head, and may have a body that nobody reads."""
        self._requests += 1

    def frame(self, size: int) -> None:
        """So many follow from what they frame."""
        self.framing_bytes += size

    def remain(self, kind: str, data: bytes) -> None:
        """These are in no other event."""
        if not data:
            return
        self.remainder_bytes += len(data)
        self._kinds[kind] += len(data)
        if self._part is None:
            self._part = Capture(max_kept_bytes=KEPT_BYTES)
        self._part.feed(data)

    def show_fields(self, fields: Iterable[tuple[bytes, bytes]]) -> None:
        """Decoded header fields whose encoding is in the remainder."""
        if self._fields is None:
            self._fields = Capture(max_kept_bytes=KEPT_BYTES)
        self._fields.feed(field_lines(fields))

    def end_for(self, reason: str) -> None:
        """Why the gateway ends it; the first reason counts."""
        self.reason = self.reason or reason

    @property
    def missing_bytes(self) -> int:
        """Received, and in no event."""
        found = self.recorded_bytes + self.framing_bytes + self.remainder_bytes
        return max(0, self.received_bytes - found)

    @property
    def is_over(self) -> bool:
        """Whether the remainder is over its bound."""
        passed = self.recorded_bytes + self.sent_bytes
        earned = self._records * EARNED_PER_RECORD_BYTES + passed // EARNED_SHARE
        late = min(self._kinds[LATE_BODY], self._requests * LATE_BODY_BYTES)
        return self.remainder_bytes - late > self._free_bytes + earned

    @property
    def is_part_due(self) -> bool:
        """Whether a part of the remainder is to be recorded now."""
        return any(
            part is not None and part.total_bytes >= PART_BYTES
            for part in (self._part, self._fields)
        )

    @property
    def has_unrecorded(self) -> bool:
        """Whether there is a remainder that no event has yet."""
        return self._part is not None or self._fields is not None or self.missing_bytes > 0

    def item(self, place: dict[str, JsonValue], *, closed: bool) -> Item:
        """The event, with what remained since the one before. `place`: whose connection to what."""
        while closed and self._holders:
            self._holders.pop()()
        data: dict[str, JsonValue] = {
            **place,
            "connection": self.number,
            "phase": "closed" if closed else "open",
            "received_bytes": self.received_bytes,
            "recorded_bytes": self.recorded_bytes,
            "framing_bytes": self.framing_bytes,
            "remainder_bytes": self.remainder_bytes,
            "missing_bytes": self.missing_bytes if closed else 0,
            "unread_bytes": self.unread_bytes,
            "eof": self.is_at_end,
            "accounted": closed and not self.missing_bytes and not self.unread_bytes,
            "reason": shown(self.reason, 200),
            "duration_ms": round((time.monotonic() - self._start) * 1000, 3),
            **({"remainder": dict(self._kinds)} if self._kinds else {}),
        }
        return Item(Kind.NETWORK_CONNECTION, data, self._taken("remainder") + self._taken("fields"))

    def _taken(self, name: str) -> tuple[Body, ...]:
        if name == "fields":
            capture, self._fields = self._fields, None
        else:
            capture, self._part = self._part, None
        return () if capture is None else capture.bodies(name)


class Incoming:
    """A request's bytes on their way from the protocol to the exchange that records them.

    `head`: as it came; HTTP/2: the compressed block. `fields`: names and values as they were sent.
    `is_text`: whether `head` can be compared with what is shown of it. `is_handed`: an exchange has
    it.
    """

    def __init__(
        self, account: Account, head: bytes, fields: list[tuple[bytes, bytes]], *, is_text: bool
    ) -> None:
        self._account = account
        account.begin_request()
        self.head, self.fields, self.is_text = head, fields, is_text
        self._pieces: list[bytes] = []
        self._is_claimed = self._is_over = False
        self.is_handed = False

    def came(self, data: bytes) -> None:
        """A piece of the body, on its way. The exchange is told of it, or `leave` finds it."""
        if self._is_over:
            self._account.remain(LATE_BODY, data)
        elif data:
            self._pieces.append(data)

    def took(self, data: bytes) -> None:
        """The exchange has this very piece, and counts it as recorded when it has an event."""
        self._pieces = [piece for piece in self._pieces if piece is not data]

    def record(self, size: int) -> None:
        """So many bytes of the body are recorded."""
        self._account.record(size)

    def claim_head(self) -> int:
        """The head is recorded now; its size."""
        if self._is_claimed:
            return 0
        self._is_claimed = True
        self._account.record(len(self.head))
        return len(self.head)

    def take_head(self) -> bytes:
        """The head of a request that no exchange gets: the caller records it."""
        if self._is_claimed or self.is_handed:
            return b""
        self._is_claimed = True
        return self.head

    def leave(self) -> None:
        """No exchange takes any more: what is left is the remainder's."""
        if self._is_over:
            return
        self._is_over = True
        if not self._is_claimed:
            self._is_claimed = True
            self._account.remain("head", self.head)
            if not self.is_text:
                self._account.show_fields(self.fields)
        for piece in self._pieces:
            self._account.remain(LATE_BODY, piece)
        # A connection may have a thousand requests.
        self._pieces, self.head, self.fields = [], b"", []


def field_lines(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Header fields as text, one a line."""
    return b"".join(b"%s: %s\r\n" % (name, value) for name, value in fields)

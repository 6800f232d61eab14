"""HTTP between cells, read from the packet record after the fact. Pure; h11 parses, and every byte is a guest's.

The gateway sees what is asked of it. What one cell asks of another goes past it: the record of those requests is made from the packets, when the range ends.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Final

import h11

from belljar.network.conversations import Conversation

MAX_EXCHANGES: Final = 1000
"""Of one conversation."""
MAX_BODY_BYTES: Final = 64 << 10
"""Kept of each body."""
_MAX_HEAD_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenBody:
    """A body: what is kept of it, all its bytes counted, the digest of all."""

    kept: bytes
    total_bytes: int
    sha256: str

    @classmethod
    def of(cls, text: bytes, most_bytes: int) -> SeenBody:
        """Of bytes that are all there."""
        return cls(kept=text[:most_bytes], total_bytes=len(text), sha256=hashlib.sha256(text).hexdigest())

    def cut_to(self, most_bytes: int) -> SeenBody:
        """With no more kept of it."""
        return replace(self, kept=self.kept[:most_bytes])


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request and its answer; `status` is 0 when none was seen. Header values are as they were sent."""

    method: str
    target: str
    host: str
    request_headers: tuple[tuple[bytes, bytes], ...]
    request: SeenBody
    status: int
    response_headers: tuple[tuple[bytes, bytes], ...] = ()
    response: SeenBody | None = None

    def cut_to(self, most_bytes: int) -> Exchange:
        """With no more kept of its bodies."""
        response = None if self.response is None else self.response.cut_to(most_bytes)
        return replace(self, request=self.request.cut_to(most_bytes), response=response)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What each side said after the last exchange that could be read."""

    sent: bytes
    received: bytes


class _Gathered:
    """A body, as it comes."""

    def __init__(self) -> None:
        self._kept, self._total, self._digest = bytearray(), 0, hashlib.sha256()

    def take(self, data: bytes) -> None:
        self._kept += data[: MAX_BODY_BYTES - len(self._kept)]
        self._total += len(data)
        self._digest.update(data)

    def seen(self) -> SeenBody:
        return SeenBody(kept=bytes(self._kept), total_bytes=self._total, sha256=self._digest.hexdigest())


def exchanges(conversation: Conversation) -> tuple[list[Exchange], Rest]:
    """The requests of one conversation with their answers, in order, up to what is no HTTP/1.1, at most `MAX_EXCHANGES`; and what was said besides. Total."""
    asked = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
    answered = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
    found: list[Exchange] = []
    left = (len(conversation.sent), len(conversation.received))
    try:
        _feed(asked, conversation.sent)
        _feed(answered, conversation.received)
        while len(found) < MAX_EXCHANGES and (request := _request(asked)) is not None:
            left = (_unread(asked), left[1])
            answer = _response(answered, request[0])
            found.append(_exchange(*request, answer))
            left = (left[0], _unread(answered) if answer is not None else left[1])
            _next(asked, answered)
    except (h11.ProtocolError, ValueError):
        pass
    sent, received = (
        said[len(said) - rest :] for said, rest in zip((conversation.sent, conversation.received), left, strict=True)
    )
    return found, Rest(sent=sent, received=received)


def _unread(parser: h11.Connection) -> int:
    return len(parser.trailing_data[0])


def _feed(parser: h11.Connection, said: bytes) -> None:
    """All that was said, and then its end."""
    if said:
        parser.receive_data(said)
    parser.receive_data(b"")


def _request(asked: h11.Connection) -> tuple[h11.Request, SeenBody] | None:
    event = asked.next_event()
    if not isinstance(event, h11.Request):
        return None
    body = _Gathered()
    while isinstance(data := asked.next_event(), h11.Data):
        body.take(bytes(data.data))
    return event, body.seen()


def _response(answered: h11.Connection, head: h11.Request) -> tuple[h11.Response, SeenBody] | None:
    # The parser of an answer has to know the question (a HEAD has none of the body that its answer tells of).
    answered.send(h11.Request(method=head.method, target=head.target, headers=[(b"host", b"x")]))
    answered.send(h11.EndOfMessage())
    body, event = _Gathered(), None
    try:
        event = answered.next_event()
        while isinstance(event, h11.InformationalResponse):
            event = answered.next_event()
        while isinstance(data := answered.next_event(), h11.Data):
            body.take(bytes(data.data))
    except h11.RemoteProtocolError:  # what came before it is told all the same
        pass
    return (event, body.seen()) if isinstance(event, h11.Response) else None


def _next(asked: h11.Connection, answered: h11.Connection) -> None:
    """On to the next request. Raises `h11.ProtocolError` when there can be none."""
    if asked.their_state is not h11.DONE or answered.their_state is not h11.DONE:
        raise h11.LocalProtocolError("the conversation ends here")
    asked.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
    asked.send(h11.EndOfMessage())
    asked.start_next_cycle()
    answered.start_next_cycle()


def _exchange(head: h11.Request, body: SeenBody, answer: tuple[h11.Response, SeenBody] | None) -> Exchange:
    host = next((value for name, value in head.headers if name == b"host"), b"")
    return Exchange(
        method=head.method.decode("latin-1"),
        target=head.target.decode("latin-1"),
        host=host.decode("latin-1"),
        request_headers=tuple(head.headers.raw_items()),
        request=body,
        status=answer[0].status_code if answer else 0,
        response_headers=tuple(answer[0].headers.raw_items()) if answer else (),
        response=answer[1] if answer else None,
    )

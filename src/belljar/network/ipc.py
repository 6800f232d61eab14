"""The processes' messages within a range, over sequenced unix sockets: one bounded codec.

Trusted processes send a JSON object a datagram, with descriptors (`send`, `receive`).
At start they get documents in memory files (`fill`, `from_file`).
A gateway may be compromised: `EventDecoder` checks every field, length and order it sends.

From the gateway, a message is a head in one line and then each body's kept bytes in turn, in as
few datagrams as that takes:
`{"id", "kind", "data", "bodies": [{"name", "kept_bytes", "total_bytes", "sha256"}]}`.
The kinds beside those of events:

- `ready`: once, when it serves; `certificate` in its data is the CA's, PEM.
- `alive`: a heartbeat, every few seconds, without data.
- `ask`: a request, `{"what"}` and one body. `dial` has the body `{"host", "port", "stand_in"}`.
- `ended`: last; `{"unreported"}` counts events lost.

To the gateway:

- `{"ack": id}`: the message is on record, or was received.
- `{"answer": id, "ok", "bytes"}`, then the bytes; a dial's head brings a descriptor.
- `{"end": seconds}`: report what is in progress by then.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from belljar.events import Body, JsonValue, Kind
from belljar.network.gateway.context import MAX_ANSWER_BYTES, MAX_ASKED_BYTES

MAX_MESSAGE_BYTES: Final = 128 << 10
MAX_DESCRIPTORS: Final = 250  # The kernel takes 253 (unix(7))
_MAX_DOCUMENT_BYTES: Final = 16 << 20
_INT: Final = struct.Struct("@i")  # A descriptor in SCM_RIGHTS
_T = TypeVar("_T")
MAX_DATAGRAM_BYTES: Final = 64 << 10
_PIECE_BYTES: Final = 60 << 10
MAX_DATA_BYTES: Final = 48 << 10  # Of a head, its data among it.
MAX_BODIES: Final = 8
MAX_BODY_BYTES: Final = 1 << 20  # Kept of one body.
# The body with a connection's lines of NSS's key log: without it, TLS can't be decrypted.
SECRETS: Final = "secrets"
ASK: Final = "ask"
DIAL: Final = "dial"  # Requests the end of a relay to a real upstream.
READY: Final = "ready"
ALIVE: Final = "alive"
ENDED: Final = "ended"
_NOTICES: Final = frozenset({READY, ALIVE, ENDED})  # Received, and never on record
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
_MAX_DEPTH: Final = 16
# Readers that hold numbers as doubles agree up to here (RFC 8259 section 6).
_MAX_INT: Final = (1 << 53) - 1
_BODY_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_REQUEST: Final = re.compile(r"[a-z][a-z0-9_.]{0,63}", re.ASCII)
# What a gateway may put on record. All else is reported by others.
KINDS: Final = frozenset(
    {
        Kind.NETWORK_DNS,
        Kind.NETWORK_TLS,
        Kind.NETWORK_HTTP,
        Kind.NETWORK_HTTP_ANSWERED,
        Kind.NETWORK_STREAM,
        Kind.NETWORK_CONNECTION,
        Kind.NETWORK_ATTEMPT,
        Kind.LIMIT_HIT,
        Kind.GUARD_HIT,
        Kind.GUARD_UNSCANNED,
    }
)


class ClosedError(Exception):
    """The other side is gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(to: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Send an object and descriptors. Raises `ClosedError`, `ValueError`."""
    text = json.dumps(message, separators=(",", ":")).encode()
    if len(text) > MAX_MESSAGE_BYTES or len(fds) > MAX_DESCRIPTORS:
        raise ValueError(f"a message of {len(text)} bytes and {len(fds)} descriptors")
    try:
        if fds:
            socket.send_fds(to, [text], list(fds))
        else:
            to.send(text)
    except (BrokenPipeError, ConnectionResetError) as exc:
        raise ClosedError from exc


def receive(source: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next object and its descriptors, the caller's to close.

    Raises `ClosedError`, `ValueError`; `BlockingIOError`: a socket that doesn't block has none.
    """
    text, fds, flags = _to_the_last(partial(take_datagram, source, MAX_MESSAGE_BYTES))
    try:
        # The end of the connection: an empty datagram would look the same, and nothing here sends
        # one.
        if not text:
            raise ClosedError
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError("a message was cut off")
        message = json.loads(text)
        if not isinstance(message, dict):
            raise ValueError("a message that is no object")
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return message, fds


def wait_for_go(owner: socket.socket, stderr_fd: int) -> None:
    """A fork's first step: redirect output, then wait for the owner."""
    for standard in (1, 2):  # the fork server's are shared with all its children
        os.dup2(stderr_fd, standard)
    os.close(stderr_fd)
    if receive(owner) != ({"go": True}, []):
        raise ValueError("the owner sent another message than `go`")


def receive_bytes(source: socket.socket, max_bytes: int) -> bytes:
    """The next datagram. Raises `ClosedError`."""
    datagram = _to_the_last(partial(source.recv, max_bytes))
    if not datagram:
        raise ClosedError
    return datagram


def _to_the_last(read: Callable[[], _T]) -> _T:
    # Read again after a reset: the kernel reports it once, before what was still queued.
    try:
        return read()
    except ConnectionResetError:
        return read()


def take_datagram(source: socket.socket, max_bytes: int) -> tuple[bytes, list[int], int]:
    """As `socket.recv_fds`, which in Python 3.11 drops its flags: descriptors would be
    inherited."""
    room = socket.CMSG_LEN(MAX_DESCRIPTORS * _INT.size)
    text, ancillary, flags, _ = source.recvmsg(max_bytes, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            # What was cut off may end inside a number.
            fds += [
                number for (number,) in _INT.iter_unpack(data[: len(data) - len(data) % _INT.size])
            ]
    return text, fds, flags


def new_file() -> int:
    """An empty memory file. The caller closes it."""
    return os.memfd_create("document", os.MFD_CLOEXEC)


def fill(fd: int, document: Mapping[str, Any]) -> None:
    """Write the document into the open file."""
    with os.fdopen(os.dup(fd), "w") as file:
        file.write(json.dumps(document))  # json.dump would do it in Python, eight times as slow


def from_file(fd: int) -> dict[str, Any]:
    """The document in an open memory file, which it closes. Raises `ValueError`."""
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        text = file.read(_MAX_DOCUMENT_BYTES + 1)
    if len(text) > _MAX_DOCUMENT_BYTES:
        raise ValueError("the document is too long")
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("no document")
    return document


# ---- events and requests of a gateway


@dataclass(frozen=True, slots=True)
class Item:
    """An event before it has a number."""

    kind: str
    data: Mapping[str, JsonValue]
    bodies: tuple[Body, ...] = ()


def encode_event(number: int, item: Item) -> list[bytes]:
    """An event's datagrams. Raises `ValueError` beyond the bounds."""
    refs = [
        {
            "name": body.name,
            "kept_bytes": len(body.content),
            "total_bytes": body.total_bytes,
            "sha256": body.sha256,
        }
        for body in item.bodies
    ]
    fields = {"id": number, "kind": item.kind, "data": item.data, "bodies": refs}
    head = _ENCODER.encode(fields).encode()
    if len(head) > MAX_DATA_BYTES or len(refs) > MAX_BODIES:
        raise ValueError(
            f"an event has at most {MAX_DATA_BYTES} bytes of data and {MAX_BODIES} bodies"
        )
    if not refs:
        return [head]
    message = b"".join((head, b"\n", *(body.content for body in item.bodies)))
    return [message[at : at + _PIECE_BYTES] for at in range(0, len(message), _PIECE_BYTES)]


class WireViolationError(ValueError):
    """The other side broke the protocol: trust nothing more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayEvent:
    """An event of the gateway, whole."""

    id: int
    kind: Kind
    data: Mapping[str, JsonValue]
    bodies: tuple[Body, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayNotice:
    """`READY`, `ALIVE` or `ENDED`."""

    id: int
    kind: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRequest:
    """A request of the gateway, whole."""

    id: int
    what: str
    body: bytes


def encode_ack(id: int) -> bytes:  # noqa: A002 - the wire's word
    """The datagram that acknowledges a message."""
    return _head({"ack": id})


def encode_end(within_s: float) -> bytes:
    """The datagram that ends the gateway's reports."""
    return _head({"end": within_s})


# `id`: the wire's word, as above.
def encode_reply(id: int, body: bytes, *, ok: bool = True) -> list[bytes]:  # noqa: A002
    """A reply's datagrams; `ok` False: the body explains. Raises `ValueError`."""
    if len(body) > MAX_ANSWER_BYTES:
        raise ValueError(f"an answer of {len(body)} bytes")
    pieces = (body[at : at + MAX_DATAGRAM_BYTES] for at in range(0, len(body), MAX_DATAGRAM_BYTES))
    return [_head({"answer": id, "ok": ok, "bytes": len(body)}), *pieces]


class EventDecoder:
    """The owner's side: datagrams in, one message held."""

    def __init__(self, kinds: frozenset[Kind] = KINDS) -> None:
        """`kinds`: what the other side may record."""
        self._kinds = kinds
        self._head: Mapping[str, Any] | None = None
        self._content, self._wanted_bytes = bytearray(), 0
        self._last_id = -1
        self._is_ready = self._is_over = False

    def feed(self, datagram: bytes) -> GatewayEvent | GatewayNotice | GatewayRequest | None:
        """The message that this datagram completes.

        Raises `WireViolationError`: feed nothing after it.
        """
        if not datagram or len(datagram) > MAX_DATAGRAM_BYTES:
            raise WireViolationError(f"a datagram of {len(datagram)} bytes")
        if self._head is None:
            line, _, datagram = datagram.partition(b"\n")
            self._head = self._checked_head(line)
            self._wanted_bytes = sum(ref["kept_bytes"] for ref in self._head["bodies"])
        self._content += datagram
        if len(self._content) > self._wanted_bytes:
            raise WireViolationError("more bytes than its bodies have")
        if len(self._content) < self._wanted_bytes:
            return None
        head, content = self._head, bytes(self._content)
        self._head, self._content = None, bytearray()
        number, kind, data = head["id"], head["kind"], head["data"]
        if kind == ASK:
            return GatewayRequest(id=number, what=data["what"], body=content)
        if kind in _NOTICES:
            return GatewayNotice(id=number, kind=kind, data=data)
        bodies = []
        at = 0
        for ref in head["bodies"]:
            kept = content[at : at + ref["kept_bytes"]]
            at += len(kept)
            bodies.append(
                Body(
                    name=ref["name"],
                    content=kept,
                    total_bytes=ref["total_bytes"],
                    sha256=ref["sha256"],
                )
            )
        return GatewayEvent(id=number, kind=Kind(kind), data=data, bodies=tuple(bodies))

    def _checked_head(self, datagram: bytes) -> Mapping[str, Any]:
        head = _object(datagram)
        number = _count(head.get("id"), _MAX_INT, "id")
        if number <= self._last_id:
            raise WireViolationError("ids must grow")
        _exactly(head, {"id", "kind", "data", "bodies"})
        _check_message(head, self._kinds)
        if self._is_over:
            raise WireViolationError("a message after the last")
        self._is_over = head["kind"] == ENDED
        if head["kind"] == READY and self._is_ready:
            raise WireViolationError("`ready` comes once")
        self._is_ready |= head["kind"] == READY
        self._last_id = number
        return head


def _head(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    if len(text) > MAX_DATAGRAM_BYTES:
        raise ValueError(f"{len(text)} bytes; a datagram has at most {MAX_DATAGRAM_BYTES}")
    return text


def _object(datagram: bytes) -> Mapping[str, Any]:
    # Unique names, no NaN, lone surrogates or integers beyond 2^53, 16 levels.
    try:
        value = json.loads(datagram, object_pairs_hook=_each_once)
        _check_value(value, _MAX_DEPTH)
    except RecursionError as exc:
        raise WireViolationError("too deep") from exc
    except ValueError as exc:
        raise WireViolationError(f"no JSON of ours: {type(exc).__name__}") from exc
    if not isinstance(value, dict):
        raise WireViolationError("not an object")
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    # Which of two values counts differs between readers (RFC 8259 section 4).
    if len(found) != len(pairs):
        raise WireViolationError("a name twice")
    return found


def _check_value(value: Any, depth: int) -> None:  # noqa: ANN401 - JSON values of any shape
    if depth == 0:
        raise WireViolationError("too deep")
    if isinstance(value, str):
        value.encode()  # a lone surrogate can't be
    elif isinstance(value, float):
        # Nor NaN or infinity; a ledger writes greater ones with all their digits
        if not abs(value) <= _MAX_INT:
            raise WireViolationError("a number beyond 2^53")
    elif isinstance(value, int):
        if abs(value) > _MAX_INT:
            raise WireViolationError("an integer beyond 2^53")
    elif isinstance(value, dict):
        for name, item in value.items():
            name.encode()
            _check_value(item, depth - 1)
    elif isinstance(value, list):
        for item in value:
            _check_value(item, depth - 1)


def _check_message(head: Mapping[str, Any], kinds: frozenset[Kind]) -> None:
    kind, data, refs = head["kind"], head["data"], head["bodies"]
    if not isinstance(kind, str) or kind not in {*kinds, *_NOTICES, ASK}:
        raise WireViolationError("a kind that a gateway can't record")
    if not isinstance(data, dict):
        raise WireViolationError("data is no object")
    if not isinstance(refs, list) or len(refs) > MAX_BODIES:
        raise WireViolationError("bodies are no list of at most 8")
    max_bytes = MAX_ASKED_BYTES if kind == ASK else MAX_BODY_BYTES
    for ref in refs:
        if not isinstance(ref, dict):
            raise WireViolationError("a body is no object")
        _exactly(ref, {"name", "kept_bytes", "total_bytes", "sha256"})
        kept = _count(ref["kept_bytes"], max_bytes, "kept_bytes")
        if _count(ref["total_bytes"], _MAX_INT, "total_bytes") < kept:
            raise WireViolationError("more kept than there was")
        for name, pattern in (("name", _BODY_NAME), ("sha256", _SHA256)):
            if not isinstance(ref[name], str) or pattern.fullmatch(ref[name]) is None:
                raise WireViolationError(f"a body's {name}")
    if len({ref["name"] for ref in refs}) != len(refs):
        raise WireViolationError("a body's name twice")
    if kind == ASK:
        _exactly(data, {"what"})
        if not isinstance(data["what"], str) or _REQUEST.fullmatch(data["what"]) is None:
            raise WireViolationError("no request's name")
        if len(refs) != 1 or refs[0]["kept_bytes"] != refs[0]["total_bytes"]:
            raise WireViolationError("a request has one body, whole")
    elif kind in {ALIVE, ENDED}:
        _exactly(data, {"unreported"} if kind == ENDED else set())
        _count(data.get("unreported", 0), _MAX_INT, "unreported")
        if refs:
            raise WireViolationError(f"`{kind}` with bodies")


def _exactly(value: Mapping[str, Any], names: set[str]) -> None:
    if set(value) != names:
        raise WireViolationError(f"fields other than {', '.join(sorted(names))}")


def _count(value: object, maximum: int, name: str) -> int:
    # `True` is an `int` in Python.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
        raise WireViolationError(f"{name} is no count up to {maximum}")
    return value

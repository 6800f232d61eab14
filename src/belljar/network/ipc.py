"""The processes' messages within a range, over sequenced unix sockets: one bounded codec.

Trusted processes send a JSON object a datagram, with descriptors (`send`, `receive`).

A gateway may be compromised: `EventDecoder` checks every field, length and order it sends.
A message is a head in one line, `{"id", "kind", "data", "bodies": [{"name", …}]}`, and then each
body's kept bytes, in as few datagrams as that takes. Beside the kinds of events:

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

from belljar.events import Body, Kind
from belljar.network.stand_ins.web import MAX_ANSWER_BYTES, MAX_ASKED_BYTES

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
    {Kind.NETWORK_DNS, Kind.NETWORK_TLS, Kind.NETWORK_HTTP, Kind.NETWORK_HTTP_ANSWERED}
    | {Kind.NETWORK_STREAM, Kind.NETWORK_CONNECTION, Kind.NETWORK_ATTEMPT}
    | {Kind.LIMIT_HIT, Kind.GUARD_HIT, Kind.GUARD_UNSCANNED}
)
_ALL_KINDS: Final = {*KINDS, *_NOTICES, ASK}
_BODY_FIELDS: Final = {"name", "kept_bytes", "total_bytes", "sha256"}


class ClosedError(Exception):
    """The other side is gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(to: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Raises `ClosedError`, `ValueError`."""
    text = _ENCODER.encode(message).encode()
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
    """Return the next object, and descriptors to close. Raises `ClosedError`, `OSError`."""
    text, fds, flags = _to_the_last(partial(take_datagram, source, MAX_MESSAGE_BYTES))
    try:
        if not text:  # the connection's end, as nothing here sends an empty datagram
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
    for standard in (1, 2):  # the fork server's are shared with all its children
        os.dup2(stderr_fd, standard)
    os.close(stderr_fd)
    if receive(owner) != ({"go": True}, []):
        raise ValueError("the owner sent another message than `go`")


def receive_bytes(source: socket.socket, max_bytes: int) -> bytes:
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
    room = socket.CMSG_LEN(MAX_DESCRIPTORS * _INT.size)
    text, ancillary, flags, _ = source.recvmsg(max_bytes, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            # What was cut off may end inside a number.
            whole = data[: len(data) - len(data) % _INT.size]
            fds += [number for (number,) in _INT.iter_unpack(whole)]
    return text, fds, flags


def fill(fd: int, document: Mapping[str, Any]) -> None:
    with os.fdopen(os.dup(fd), "w") as file:
        file.write(json.dumps(document))  # json.dump would do it in Python, eight times as slow


def from_file(fd: int) -> dict[str, Any]:
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        text = file.read(_MAX_DOCUMENT_BYTES + 1)
    document = json.loads(text) if len(text) <= _MAX_DOCUMENT_BYTES else None
    if not isinstance(document, dict):
        raise ValueError("no document, or one that is too long")
    return document


@dataclass(frozen=True, slots=True)
class Item:
    """The `id` is set once it was sent."""

    kind: str
    data: Mapping[str, Any]
    bodies: tuple[Body, ...] = ()
    id: int = 0


class WireViolationError(ValueError):
    """The other side broke the protocol: trust nothing more."""


def encode_event(number: int, item: Item) -> list[bytes]:
    """Return an event's datagrams. Raises `ValueError` beyond the bounds."""
    refs = [
        {"name": body.name, "kept_bytes": len(body.content)}
        | {"total_bytes": body.total_bytes, "sha256": body.sha256}
        for body in item.bodies
    ]
    fields = {"id": number, "kind": item.kind, "data": item.data, "bodies": refs}
    head = _ENCODER.encode(fields).encode()
    if len(head) > MAX_DATA_BYTES or len(refs) > MAX_BODIES:
        raise ValueError(f"an event of {len(head)} bytes of data and {len(refs)} bodies")
    message = b"\n".join((head, b"".join(body.content for body in item.bodies))) if refs else head
    return [message[at : at + _PIECE_BYTES] for at in range(0, len(message), _PIECE_BYTES)]


def encode_ack(number: int) -> bytes:
    return _ENCODER.encode({"ack": number}).encode()


def encode_reply(number: int, body: bytes, *, ok: bool = True) -> list[bytes]:
    """Return a reply's datagrams; if not `ok`, the body explains. Raises `ValueError`."""
    if len(body) > MAX_ANSWER_BYTES:
        raise ValueError(f"an answer of {len(body)} bytes")
    pieces = (body[at : at + MAX_DATAGRAM_BYTES] for at in range(0, len(body), MAX_DATAGRAM_BYTES))
    return [_ENCODER.encode({"answer": number, "ok": ok, "bytes": len(body)}).encode(), *pieces]


class EventDecoder:
    def __init__(self) -> None:
        self._head: Mapping[str, Any] | None = None
        self._content, self._wanted_bytes = bytearray(), 0
        self._last_id = -1
        self._is_ready = self._is_over = False

    def feed(self, datagram: bytes) -> Item | None:
        """Return the message completed by this datagram. Raises `WireViolationError`, for good."""
        _must(0 < len(datagram) <= MAX_DATAGRAM_BYTES, "a datagram of no or too many bytes")
        if self._head is None:
            line, _, datagram = datagram.partition(b"\n")
            self._head = self._checked_head(line)
            self._wanted_bytes = sum(ref["kept_bytes"] for ref in self._head["bodies"])
        self._content += datagram
        _must(len(self._content) <= self._wanted_bytes, "more bytes than its bodies have")
        if len(self._content) < self._wanted_bytes:
            return None
        head, content = self._head, bytes(self._content)
        self._head, self._content = None, bytearray()
        bodies, at = list[Body](), 0
        for ref in head["bodies"]:
            kept = content[at : at + ref["kept_bytes"]]
            at += len(kept)
            about = {"total_bytes": ref["total_bytes"], "sha256": ref["sha256"]}
            bodies.append(Body(name=ref["name"], content=kept, **about))
        kind = Kind(head["kind"]) if head["kind"] in KINDS else head["kind"]
        return Item(kind, head["data"], tuple(bodies), head["id"])

    def _checked_head(self, line: bytes) -> dict[str, Any]:
        # Unique names, no NaN, lone surrogates or integers beyond 2^53, 16 levels.
        try:
            head: dict[str, Any] = json.loads(line, object_pairs_hook=_each_once)
            _check_value(head, _MAX_DEPTH)
        except (RecursionError, ValueError) as exc:
            raise WireViolationError(f"no JSON of ours: {type(exc).__name__}") from exc
        _must(isinstance(head, dict), "not an object")
        _must(head.keys() == {"id", "kind", "data", "bodies"}, "a head with other fields")
        number, kind, data, refs = head["id"], head["kind"], head["data"], head["bodies"]
        _must(_is_count(number, _MAX_INT) and number > self._last_id, "ids must grow")
        _must(isinstance(kind, str) and kind in _ALL_KINDS, "a kind that a gateway can't record")
        _must(isinstance(data, dict), "data is no object")
        _must(not self._is_over, "a message after the last")
        # The owner keeps its certificate.
        _must(kind != READY or not self._is_ready, "`ready` comes once")
        _must(isinstance(refs, list) and len(refs) <= MAX_BODIES, "bodies are no list of at most 8")
        most = MAX_ASKED_BYTES if kind == ASK else MAX_BODY_BYTES
        for ref in refs:
            _must(isinstance(ref, dict) and ref.keys() == _BODY_FIELDS, "a body with other fields")
            _must(_is_count(ref["kept_bytes"], most), "a body over the bound")
            _must(_is_count(ref["total_bytes"], _MAX_INT), "a body's size is no count")
            _must(ref["total_bytes"] >= ref["kept_bytes"], "more kept than there was")
            _must(_is_text(ref["name"], _BODY_NAME), "a body's name")
            _must(_is_text(ref["sha256"], _SHA256), "a body's digest")
        _must(len({ref["name"] for ref in refs}) == len(refs), "a body's name twice")
        if kind == ASK:
            _must(data.keys() == {"what"}, "a request with other fields")
            _must(_is_text(data["what"], _REQUEST), "no request's name")
            is_whole = len(refs) == 1 and refs[0]["kept_bytes"] == refs[0]["total_bytes"]
            _must(is_whole, "a request has one body, whole")
        elif kind in _NOTICES:
            _must(not refs, "a notice with bodies")
            wanted = {ALIVE: set[str](), ENDED: {"unreported"}}.get(kind, data.keys())
            _must(data.keys() == wanted, "a notice with other fields")
            _must(_is_count(data.get("unreported", 0), _MAX_INT), "`unreported` is no count")
        self._last_id, self._is_over = number, kind == ENDED
        self._is_ready |= kind == READY
        return head


def _must(is_right: bool, problem: str) -> None:  # noqa: FBT001 - an assertion's argument
    if not is_right:
        raise WireViolationError(problem)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    # Which of two values counts differs between readers (RFC 8259 section 4).
    _must(len(found) == len(pairs), "a name twice")
    return found


def _check_value(value: Any, depth: int) -> None:  # noqa: ANN401 - JSON values of any shape
    _must(depth > 0, "too deep")
    if isinstance(value, str):
        value.encode()  # a lone surrogate can't be
    elif isinstance(value, (int, float)):
        # Nor NaN or infinity; a ledger writes greater ones with all their digits
        _must(abs(value) <= _MAX_INT, "a number beyond 2^53")
    elif isinstance(value, dict):
        for name, item in value.items():
            name.encode()
            _check_value(item, depth - 1)
    elif isinstance(value, list):
        for item in value:
            _check_value(item, depth - 1)


def _is_text(value: object, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_count(value: object, maximum: int) -> bool:
    # `True` is an `int` in Python.
    return type(value) is int and 0 <= value <= maximum

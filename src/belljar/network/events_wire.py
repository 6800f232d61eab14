"""What the gateway says to the owner of its range, and the answers: datagrams on a sequenced socket. Pure: no I/O.

An event is a head, one JSON object, followed by the bytes of its bodies, each in as many datagrams as it takes, none of which holds bytes of two. Nothing comes
between them. Up: `{"id", "kind", "data", "bodies": [{"name", "kept_bytes", "total_bytes", "sha256"}]}` and, a question, `{"id", "ask", "bytes"}` with one body.
Down: `{"ack"}` when the event is on record, `{"answer", "bytes"}` with one body, `{"refused", "reason"}`.

The decoder reads what a gateway wrote that may have been taken over: every field, length and order is checked, and anything else is a violation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from belljar.events import Body, JsonValue, Kind

MAX_DATAGRAM_BYTES: Final = 64 << 10
MAX_BODIES: Final = 8
MAX_BODY_BYTES: Final = 1 << 20
"""Kept of one body."""
MAX_QUESTION_BYTES: Final = 4 << 20
MAX_ANSWER_BYTES: Final = 4 << 20
MAX_REASON_CHARS: Final = 1_000
_MAX_ID: Final = (1 << 53) - 1
_MAX_DEPTH: Final = 16
_MAX_INT: Final = (1 << 53) - 1
_BODY_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_QUESTION: Final = re.compile(r"[a-z][a-z0-9_.]{0,63}", re.ASCII)
KINDS: Final = frozenset(
    {
        Kind.NETWORK_DNS,
        Kind.NETWORK_TLS,
        Kind.NETWORK_HTTP,
        Kind.NETWORK_HTTP_ANSWERED,
        Kind.NETWORK_WEBSOCKET,
        Kind.NETWORK_STREAM,
        Kind.NETWORK_ATTEMPT,
        Kind.LIMIT_HIT,
    }
)
"""What a gateway may put on record. All else is said by others."""


class WireViolation(ValueError):  # noqa: N818 - as the channel's ProtocolViolation
    """The other side sent what the protocol forbids. Its word is worth nothing from here on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An event of the gateway, whole."""

    id: int
    kind: Kind
    data: Mapping[str, JsonValue]
    bodies: tuple[Body, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question of the gateway, whole."""

    id: int
    what: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The owner's word that an event is on record."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The owner's answer to a question; `refused`: why there is none."""

    id: int
    body: bytes = b""
    refused: str | None = None


def encode_event(id: int, kind: str, data: Mapping[str, JsonValue], bodies: Sequence[Body] = ()) -> list[bytes]:  # noqa: A002 - the wire's word
    """The datagrams of an event, in order. Raises `ValueError` for what is no event of a gateway's, or too large for one."""
    if kind not in KINDS or len(bodies) > MAX_BODIES:
        raise ValueError(f"a gateway can't record {kind!r} with {len(bodies)} bodies")
    refs = [_ref(body) for body in bodies]
    head = _head({"id": id, "kind": str(kind), "data": data, "bodies": refs})
    return [head, *(piece for body in bodies for piece in _pieces(body.content))]


def encode_question(id: int, what: str, body: bytes) -> list[bytes]:  # noqa: A002 - the wire's word
    """The datagrams of a question. Raises `ValueError` for one that can't be asked."""
    if _QUESTION.fullmatch(what) is None or len(body) > MAX_QUESTION_BYTES:
        raise ValueError(f"a gateway can't ask {what!r} with {len(body)} bytes")
    return [_head({"id": id, "ask": what, "bytes": len(body)}), *_pieces(body)]


def encode_ack(id: int) -> bytes:  # noqa: A002 - the wire's word
    """The datagram that says: on record."""
    return _head({"ack": id})


def encode_answer(id: int, body: bytes) -> list[bytes]:  # noqa: A002 - the wire's word
    """The datagrams of an answer. Raises `ValueError` when it is too large."""
    if len(body) > MAX_ANSWER_BYTES:
        raise ValueError(f"an answer of {len(body)} bytes")
    return [_head({"answer": id, "bytes": len(body)}), *_pieces(body)]


def encode_refusal(id: int, reason: str) -> bytes:  # noqa: A002 - the wire's word
    """The datagram that says that a question has no answer, and why."""
    return _head({"refused": id, "reason": reason[:MAX_REASON_CHARS]})


class UpDecoder:
    """The owner's: datagrams in, whole events and questions out. Holds at most one event: 8 bodies of 1 MiB, or one question."""

    def __init__(self) -> None:
        self._head: Mapping[str, Any] | None = None
        self._wanted: list[int] = []
        self._parts: list[bytearray] = []
        self._last_id = -1

    def feed(self, datagram: bytes) -> Said | Asked | None:
        """The event that this datagram completes. Raises `WireViolation`; after that nothing more may be fed."""
        if not datagram or len(datagram) > MAX_DATAGRAM_BYTES:
            raise WireViolation(f"a datagram of {len(datagram)} bytes")
        if self._head is None:
            self._begin(_object(datagram))
        else:
            self._continue(datagram)
        return self._finish()

    def _begin(self, head: Mapping[str, Any]) -> None:
        number = _count(head.get("id"), _MAX_ID, "id")
        if number <= self._last_id:
            raise WireViolation("ids must grow")
        if "ask" in head:
            _exactly(head, {"id", "ask", "bytes"})
            if not isinstance(head["ask"], str) or _QUESTION.fullmatch(head["ask"]) is None:
                raise WireViolation("no question's name")
            self._wanted = [_count(head["bytes"], MAX_QUESTION_BYTES, "bytes")]
        else:
            _exactly(head, {"id", "kind", "data", "bodies"})
            _check_event(head)
            self._wanted = [ref["kept_bytes"] for ref in head["bodies"]]
        self._head, self._last_id = head, number
        self._parts = [bytearray() for _ in self._wanted]

    def _continue(self, datagram: bytes) -> None:
        for part, wanted in zip(self._parts, self._wanted, strict=True):
            if len(part) < wanted:
                if len(part) + len(datagram) > wanted:
                    raise WireViolation("more bytes than a body has")
                part += datagram
                return
        raise WireViolation("bytes that belong to no body")

    def _finish(self) -> Said | Asked | None:
        head = self._head
        if head is None or any(len(part) < wanted for part, wanted in zip(self._parts, self._wanted, strict=True)):
            return None
        contents = [bytes(part) for part in self._parts]
        self._head, self._parts, self._wanted = None, [], []
        if "ask" in head:
            return Asked(id=head["id"], what=head["ask"], body=contents[0])
        bodies = (
            Body(name=ref["name"], content=content, total_bytes=ref["total_bytes"], sha256=ref["sha256"])
            for ref, content in zip(head["bodies"], contents, strict=True)
        )
        return Said(id=head["id"], kind=Kind(head["kind"]), data=head["data"], bodies=tuple(bodies))


class DownDecoder:
    """The gateway's: the owner's datagrams in, whole answers out."""

    def __init__(self) -> None:
        self._id = -1
        self._wanted = 0
        self._body: bytearray | None = None

    def feed(self, datagram: bytes) -> Acknowledged | Answered | None:
        """What this datagram completes. Raises `WireViolation`."""
        if self._body is None:
            return self._begin(_object(datagram))
        self._body += datagram
        return self._finish()

    def _begin(self, head: Mapping[str, Any]) -> Acknowledged | Answered | None:
        if "ack" in head:
            return Acknowledged(id=_count(head["ack"], _MAX_ID, "ack"))
        if "refused" in head:
            return Answered(id=_count(head["refused"], _MAX_ID, "refused"), refused=str(head.get("reason", "")))
        self._id = _count(head.get("answer"), _MAX_ID, "answer")
        self._wanted = _count(head.get("bytes"), MAX_ANSWER_BYTES, "bytes")
        self._body = bytearray()
        return self._finish()

    def _finish(self) -> Answered | None:
        if self._body is None or len(self._body) < self._wanted:
            return None
        if len(self._body) > self._wanted:
            raise WireViolation("more bytes than the answer has")
        body, self._body = bytes(self._body), None
        return Answered(id=self._id, body=body)


def _pieces(content: bytes) -> Iterator[bytes]:
    for at in range(0, len(content), MAX_DATAGRAM_BYTES):
        yield content[at : at + MAX_DATAGRAM_BYTES]


def _ref(body: Body) -> dict[str, JsonValue]:
    if len(body.content) > MAX_BODY_BYTES:
        raise ValueError(f"a body of {len(body.content)} bytes")
    return {
        "name": body.name,
        "kept_bytes": len(body.content),
        "total_bytes": body.total_bytes,
        "sha256": body.sha256,
    }


def _head(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    if len(text) > MAX_DATAGRAM_BYTES:
        raise ValueError(f"{len(text)} bytes; a datagram has at most {MAX_DATAGRAM_BYTES}")
    return text


def _object(datagram: bytes) -> Mapping[str, Any]:
    """A JSON object without a name twice, NaN, lone surrogates, integers that JSON can't carry, or more than 16 levels."""
    try:
        value = json.loads(datagram, object_pairs_hook=_each_once, parse_constant=_no_constant)
        _check_value(value, _MAX_DEPTH)
    except RecursionError as exc:
        raise WireViolation("too deep") from exc
    except ValueError as exc:
        raise WireViolation(f"no JSON of ours: {type(exc).__name__}") from exc
    if not isinstance(value, dict):
        raise WireViolation("not an object")
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise WireViolation("a name twice")
    return found


def _no_constant(word: str) -> None:
    raise WireViolation(word)


def _check_value(value: Any, depth: int) -> None:  # noqa: ANN401 - JSON values of any shape
    if depth == 0:
        raise WireViolation("too deep")
    if isinstance(value, str):
        value.encode()  # a lone surrogate can't be
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN
            raise WireViolation("no number")
    elif isinstance(value, int):
        if abs(value) > _MAX_INT:
            raise WireViolation("an integer beyond 2^53")
    elif isinstance(value, dict):
        for name, item in value.items():
            name.encode()
            _check_value(item, depth - 1)
    elif isinstance(value, list):
        for item in value:
            _check_value(item, depth - 1)


def _check_event(head: Mapping[str, Any]) -> None:
    if not isinstance(head["kind"], str) or head["kind"] not in KINDS:
        raise WireViolation("a kind that a gateway can't record")
    if not isinstance(head["data"], dict):
        raise WireViolation("data is no object")
    refs = head["bodies"]
    if not isinstance(refs, list) or len(refs) > MAX_BODIES:
        raise WireViolation("bodies are no list of at most 8")
    for ref in refs:
        _check_ref(ref)
    if len({ref["name"] for ref in refs}) != len(refs):
        raise WireViolation("a body's name twice")


def _check_ref(ref: object) -> None:
    if not isinstance(ref, dict):
        raise WireViolation("a body is no object")
    _exactly(ref, {"name", "kept_bytes", "total_bytes", "sha256"})
    kept = _count(ref["kept_bytes"], MAX_BODY_BYTES, "kept_bytes")
    if _count(ref["total_bytes"], _MAX_INT, "total_bytes") < kept:
        raise WireViolation("more kept than there was")
    for name, pattern in (("name", _BODY_NAME), ("sha256", _SHA256)):
        if not isinstance(ref[name], str) or pattern.fullmatch(ref[name]) is None:
            raise WireViolation(f"a body's {name}")


def _exactly(value: Mapping[str, Any], names: set[str]) -> None:
    if set(value) != names:
        raise WireViolation(f"fields other than {', '.join(sorted(names))}")


def _count(value: object, most: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise WireViolation(f"{name} is no count up to {most}")
    return value

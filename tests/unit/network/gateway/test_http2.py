"""HTTP/2: where each byte of a connection is on record."""

from __future__ import annotations

from typing import Any, cast

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.gateway_clients import raw_frame
from tests.fakes.http_connection import SUMMED, Outcome, talk

from belljar.events import Kind
from belljar.network.gateway.config import Bounds
from belljar.network.gateway.http2 import PREFACE
from belljar.network.ipc import Item

SECRET = b"s3cr3t-" + bytes(range(65, 91)) + b"-end"
TEXT = SECRET.decode()
HEAD = ((":method", "POST"), (":scheme", "https"), (":authority", "shop.example"), (":path", "/"))
START = PREFACE + raw_frame(4)
END_STREAM, END_HEADERS, PADDED, PRIORITY = 1, 4, 8, 0x20
DATA, HEADERS, SETTINGS, GOAWAY, CONTINUATION = 0, 1, 4, 7, 9


def block(
    *more: tuple[str, str], path: str = "/", is_huffman: bool = True, head: object = None
) -> bytes:
    """A header block, by an encoder that keeps nothing."""
    fields = [(name, path if name == ":path" else value) for name, value in head or HEAD]  # type: ignore[attr-defined]
    return hpack.Encoder().encode([(n, v, True) for n, v in (*fields, *more)], huffman=is_huffman)


def head(
    *more: tuple[str, str], stream: int = 1, flags: int = END_HEADERS, path: str = "/"
) -> bytes:
    """HEADERS."""
    return raw_frame(HEADERS, block(*more, path=path), flags, stream)


def check(outcome: Outcome, sent: bytes) -> None:
    """The invariant: nothing is missing, and the sums are those of the events."""
    end = outcome.end
    assert end["received_bytes"] == len(sent) == sum(end[name] for name in SUMMED)
    assert (end["missing_bytes"], end["accounted"]) == (0, True)
    assert end["recorded_bytes"] == outcome.recorded_bytes
    assert end["remainder_bytes"] == sum(end.get("remainder", {}).values())


WHOLE = head() + raw_frame(DATA, b"A", END_STREAM, 1)
TRAILERS = hpack.Encoder().encode([("x-t", TEXT, True)])
ATTACKS = {
    "unknown frame": raw_frame(0xBB, SECRET) + WHOLE,
    "unknown frame between": (
        head() + raw_frame(0xBB, SECRET, 0, 1) + raw_frame(DATA, b"A", END_STREAM, 1)
    ),
    "ping": b"".join(raw_frame(6, SECRET[at : at + 8].ljust(8)) for at in range(0, 40, 8)) + WHOLE,
    "padding of data": (
        head() + raw_frame(DATA, bytes([len(SECRET)]) + b"A" + SECRET, END_STREAM | PADDED, 1)
    ),
    "padding of a head": raw_frame(
        HEADERS, bytes([len(SECRET)]) + block() + SECRET, END_STREAM | END_HEADERS | PADDED, 1
    ),
    "GOAWAY": WHOLE + raw_frame(GOAWAY, bytes(8) + SECRET),
    "trailers": head() + raw_frame(HEADERS, TRAILERS, END_STREAM | END_HEADERS, 1),
    "unknown settings": (
        raw_frame(SETTINGS, b"".join(b"\xf0\x01" + SECRET[at : at + 4] for at in range(0, 40, 4)))
        + WHOLE
    ),
    "end of a long field": raw_frame(
        HEADERS, block(("x", "a" * 9_000 + TEXT)), END_STREAM | END_HEADERS, 1
    ),
    "field beyond those shown": raw_frame(
        HEADERS,
        block(*((f"x-{n}", "v") for n in range(90)), ("x", TEXT)),
        END_STREAM | END_HEADERS,
        1,
    ),
    "host beside the authority": raw_frame(
        HEADERS, block(("host", TEXT)), END_STREAM | END_HEADERS, 1
    ),
    "refused head": head(("x", TEXT), path="/a b"),
    "second refused head": head(path="/a b") + head(("x", TEXT), stream=3, path="/a b"),
    "head that breaks the rules": raw_frame(
        HEADERS, block(("Upper", TEXT)), END_STREAM | END_HEADERS, 1
    ),
    "head without its end": raw_frame(HEADERS, block(("x", TEXT), is_huffman=False), END_STREAM, 1),
    "half a frame": raw_frame(HEADERS, SECRET + bytes(50), END_STREAM, 1)[:-50],
    "data of no stream": raw_frame(DATA, SECRET, 0, 5),
    "data behind the end": WHOLE + raw_frame(DATA, SECRET, 0, 1),
    "head in two frames": (
        raw_frame(HEADERS, block(("x", TEXT))[:20], END_STREAM, 1)
        + raw_frame(CONTINUATION, block(("x", TEXT))[20:], END_HEADERS, 1)
    ),
    "unread body": head(path="/early") + raw_frame(DATA, SECRET, 0, 1),
    "body": head() + raw_frame(DATA, SECRET, END_STREAM, 1),
    "bytes of a frame that is too long": b"\xff\xff\xff\0\0\0\0\0\1" + SECRET,
}


TEXTS = st.text("aAbB-.1", min_size=1, max_size=5)


def long(texts: st.SearchStrategy[str], most: int) -> st.SearchStrategy[str]:
    """Short ones, and some beyond what an event shows."""
    return st.builds(
        lambda text, size: text + text[:1] * size, texts, st.sampled_from([0, 0, most])
    )


@pytest.mark.promise("5.4")
@settings(max_examples=300, deadline=None)
@given(
    long(TEXTS, 70),
    st.sampled_from(["shop.example", "b" * 600, "b" * 2300, "Shop.Example"]),
    st.builds(str.__add__, st.sampled_from(["/", "/?", "", "https://a/"]), long(TEXTS, 2100)),
    st.lists(st.tuples(TEXTS.map(str.lower), long(TEXTS, 600)), max_size=3),
)
def test_the_event_determines_the_head(
    method: str, authority: str, path: str, more: list[tuple[str, str]]
) -> None:
    """The fields of a head can be made again from its event, or are a body of it."""
    pseudo = ((":method", method), (":scheme", "https"), (":authority", authority), (":path", path))
    frame = raw_frame(HEADERS, block(*more, head=pseudo, path=path), END_STREAM | END_HEADERS, 1)
    for event in talk([START + frame], "h2").items:
        if "head_bytes" in event.data:
            assert sent_fields(event) == [*pseudo, *more]


def sent_fields(event: Item) -> list[tuple[str, str]]:
    """A head of HTTP/2 as someone reads it who has the event alone."""
    data = cast("Any", event.data)
    kept = [body.content.decode() for body in event.bodies if body.name == "head"]
    if kept:
        return [
            (":" * line.startswith(":") + name, value)
            for line in kept[0].splitlines()
            for name, _, value in [line.removeprefix(":").partition(": ")]
        ]
    (_, authority), *more = data["headers"]
    path = data["url"].removeprefix("https://" + authority)
    pseudo = {":method": data["method"], ":scheme": "https", ":authority": authority, ":path": path}
    return [*pseudo.items(), *((name, value) for name, value in more)]


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("size", [1 << 16, 7])
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_what_is_hidden_is_on_record(attack: bytes, size: int) -> None:
    """Wherever HTTP/2 has room for bytes that no stand-in gets, they are in a body, and every byte
    is accounted for."""
    sent = START + attack
    outcome = talk([sent[at : at + size] for at in range(0, len(sent), size)], alpn="h2")
    check(outcome, sent)
    if size > len(sent):
        kept = outcome.kept
        assert SECRET in kept or all(
            SECRET[at : at + 4] in kept for at in range(0, len(SECRET) - 4, 4)
        )


def test_no_preface() -> None:
    """What is no HTTP/2 at all."""
    outcome = talk([b"GET / HTTP/1.1\r\n" + SECRET], alpn="h2")
    check(outcome, b"GET / HTTP/1.1\r\n" + SECRET)
    assert SECRET in outcome.kept


@pytest.mark.promise("5.4")
def test_numbers_that_a_sender_chooses_remain() -> None:
    """Window updates, priorities, errors, the reserved bit, unknown flags, table size updates,
    streams left out."""
    updates = b"\x3f\xe1\x1e\x20\x3f\xe1\x0f"
    sent = (
        START
        + raw_frame(8, b"\0\0AB")
        + raw_frame(2, b"\0\0\0\0Z", 0, 7)
        + raw_frame(
            HEADERS, b"\0\0\0\3W" + updates + block(), END_HEADERS | END_STREAM | PRIORITY, 9
        )
        + raw_frame(3, b"\0\0CD", 0, 9)
        + raw_frame(6, b"12345678", 0x70)
    )
    outcome = talk([sent], alpn="h2")
    check(outcome, sent)
    kinds = outcome.end["remainder"]
    assert kinds["hpack"] == len(updates)
    assert (kinds["h2_window_update"], kinds["h2_priority"]) == (4, 9 + 5 + 5)
    assert kinds["h2_headers"] == 9  # its stream was free to choose
    assert kinds["h2_ping"] == 9 + 8  # so were its flags


def test_an_ordinary_request_leaves_next_to_no_remainder() -> None:
    """A client's settings and its window update; nothing of its requests."""
    settings_payload = b"\0\3\0\0\0\x64\0\4\2\0\0\0"
    sent = (
        PREFACE
        + raw_frame(SETTINGS, settings_payload)
        + raw_frame(8, b"\1\xff\0\1")
        + raw_frame(SETTINGS, b"", 1)
    )
    sent += WHOLE + head(stream=3) + raw_frame(DATA, b"B" * 9000, END_STREAM, 3)
    outcome = talk([sent], alpn="h2")
    check(outcome, sent)
    assert outcome.end["remainder"] == {"h2_settings": len(settings_payload), "h2_window_update": 4}
    assert not any(body.name == "head" for item in outcome.items for body in item.bodies)


@pytest.mark.promise("5.4")
def test_too_much_beside_requests_ends_the_connection() -> None:
    """Unknown frames over the bound, far fewer than a flood."""
    sent = [START, *[raw_frame(0xBB, bytes(16_000))] * 3, WHOLE]
    outcome = talk(sent, alpn="h2")
    check(outcome, b"".join(sent))
    assert outcome.end["reason"].startswith("too many bytes")
    assert not any(item.kind == Kind.NETWORK_HTTP_ANSWERED for item in outcome.items)


@pytest.mark.promise("5.4")
def test_the_body_of_a_request_that_was_answered_does_not_count() -> None:
    """An ordinary client fills the window before it hears of the answer: its other requests go on,
    and the body is on record."""
    late = [raw_frame(DATA, b"L" * 10_000, 0, 1)] * 4
    sent = [
        START + head(("content-length", "40000")),
        *late,
        head(stream=3),
        raw_frame(DATA, b"x", END_STREAM, 3),
    ]
    outcome = talk(sent, alpn="h2", bounds=Bounds(body_bytes=1000, farewell_s=0.05))
    check(outcome, b"".join(sent))
    assert [
        item.data["status"] for item in outcome.items if item.kind == Kind.NETWORK_HTTP_ANSWERED
    ] == [413, 200]
    assert outcome.end["remainder"] == {
        "late_body": 40_000,
        "h2_data": 4 * 9,
    }  # with the heads, which say of what stream
    parts = [item for item in outcome.items if item.kind == Kind.NETWORK_CONNECTION]
    assert [len(body.content) for item in parts for body in item.bodies] == [40_036]


FRAMES = st.sampled_from(
    [
        head(),
        head(stream=3),
        head(stream=1, path="/early"),
        head(stream=5, flags=END_HEADERS | END_STREAM),
        raw_frame(DATA, b"abc", 0, 1),
        raw_frame(DATA, b"abc", END_STREAM, 1),
        raw_frame(DATA, b"\2abcd", PADDED, 3),
        raw_frame(HEADERS, TRAILERS, END_STREAM | END_HEADERS, 1),
        raw_frame(HEADERS, block()[:5], 0, 7),
        raw_frame(CONTINUATION, block()[5:], END_HEADERS, 7),
        raw_frame(6, b"12345678"),
        raw_frame(8, b"\0\0\0\1", 0, 1),
        raw_frame(3, b"\0\0\0\1", 0, 1),
        raw_frame(2, b"\0\0\0\0Z", 0, 9),
        raw_frame(7, bytes(8) + b"bye"),
        raw_frame(0xBB, b"x"),
        raw_frame(SETTINGS, b"\0\4\0\0\0\0"),
    ]
)


@pytest.mark.promise("5.4")
@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(FRAMES, st.binary(max_size=12)), max_size=10), st.integers(1, 400))
def test_every_byte_is_accounted_for(frames: list[bytes], size: int) -> None:
    """Whatever frames come, in whatever pieces: received is recorded, framing and remainder,
    exactly."""
    sent = START + b"".join(frames)
    check(talk([sent[at : at + size] for at in range(0, len(sent), size)], alpn="h2"), sent)

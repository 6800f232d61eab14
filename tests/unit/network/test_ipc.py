"""Messages between processes of ours, and the owner's end of a gateway's events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ledger.conftest import body

from belljar.network import ipc as wire
from belljar.network.ipc import Item, encode_event

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(-(2**53) + 1, 2**53 - 1)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def head(**changes: object) -> bytes:
    event = {"id": 1, "kind": "network.dns", "data": {}, "bodies": [], **changes}
    return json.dumps(event).encode()


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(wire.KINDS)),
            st.dictionaries(TEXT, VALUES, max_size=4),
            st.lists(st.binary(max_size=200_000), max_size=3),
        ),
        max_size=3,
    )
)
def test_what_a_gateway_sends_arrives(
    events: list[tuple[str, dict[str, Any], list[bytes]]],
) -> None:
    """Events of any size, one after the other, come out as they went in."""
    decoder = wire.EventDecoder()
    for number, (kind, data, contents) in enumerate(events, 1):
        bodies = tuple(
            body(f"b{index}", content, dropped=index) for index, content in enumerate(contents)
        )
        sent = encode_event(number, Item(kind, data, bodies))
        (said,) = filter(None, map(decoder.feed, sent))
        assert said == wire.Item(id=number, kind=kind, data=data, bodies=bodies)


@settings(deadline=None)
@given(
    st.lists(
        st.binary(max_size=300)
        | st.just(head())
        | st.builds(lambda value: json.dumps(value).encode(), VALUES),
        max_size=6,
    )
)
def test_anything_else_is_a_violation_or_waits(sent: list[bytes]) -> None:
    """Whatever is fed is accepted, waits for more, or is a `WireViolationError`, nothing else."""
    decoder = wire.EventDecoder()
    for datagram in sent:
        try:
            decoder.feed(datagram)
        except wire.WireViolationError:
            return


REF = {"name": "b", "kept_bytes": 1, "total_bytes": 1, "sha256": "0" * 64}
BAD = {
    "empty": b"",
    "too long": b" " * (wire.MAX_DATAGRAM_BYTES + 1),
    "no object": b"[]",
    "deep": b"[" * 60_000,
    "not a number": head().replace(b"{}", b'{"x": NaN}'),
    "infinite": head().replace(b"{}", b'{"x": 1e999}'),
    "beyond 2^53": head(data={"x": 2**53}),
    "a lone surrogate": head(data={"x": "\ud800"}),
    "17 levels": head(data=json.loads('{"x":' * 17 + "1" + "}" * 17)),
    "a name twice": b'{"id": 1, "id": 2, "kind": "network.dns", "data": {}, "bodies": []}',
    "a field too many": head(more=1),
    "no id": head(id=None),
    "another's kind": head(kind="cell.destroyed"),
    "no data": head(data=[]),
    "nine bodies": head(bodies=[{**REF, "name": f"b{index}"} for index in range(9)]),
    "a name twice among bodies": head(bodies=[REF, REF]),
    "a body too large": head(
        bodies=[{**REF, "kept_bytes": wire.MAX_BODY_BYTES + 1, "total_bytes": 2**40}]
    ),
    "more kept than there was": head(bodies=[{**REF, "total_bytes": 0}]),
    "a path for a name": head(bodies=[{**REF, "name": "../x"}]),
    "no digest": head(bodies=[{**REF, "sha256": "0" * 63}]),
    "a question without a body": head(kind="ask", data={"what": "chat"}),
    "a question that is cut": head(
        kind="ask", data={"what": "chat"}, bodies=[{**REF, "total_bytes": 2}]
    ),
    "a sign of life with data": head(kind="alive", data={"x": 1}),
    "a question of no name": head(kind="ask", data={"what": "../x"}, bodies=[REF]),
    "a last message without its count": head(kind="ended"),
}


@pytest.mark.parametrize("name", BAD)
def test_each_violation_is_seen(name: str) -> None:
    """One case for each rule of the protocol."""
    with pytest.raises(wire.WireViolationError):
        wire.EventDecoder().feed(BAD[name])


OVERFLOWING = head(bodies=[REF])
ENDED = head(kind="ended", data={"unreported": 3})


@pytest.mark.parametrize(
    ("first", "then", "rule"),
    [
        (ENDED, head(id=2, kind="alive"), "after the last"),
        (head(), head(), "ids must grow"),
        (OVERFLOWING, b"xy", "more bytes than its bodies have"),
        # The owner keeps each: a gateway that repeats it could fill the owner's memory
        (head(kind="ready"), head(id=3, kind="ready"), "once"),
    ],
)
def test_what_comes_when_it_may_not_is_a_violation(first: bytes, then: bytes, rule: str) -> None:
    """Each alone is good."""
    decoder = wire.EventDecoder()
    assert (decoder.feed(first) is None) == (first is OVERFLOWING)
    with pytest.raises(wire.WireViolationError, match=rule):
        decoder.feed(then)


def test_last_messages_are_read_after_a_reset() -> None:
    """The kernel reports the reset first; then the end is told, both ways."""
    for receive, last, expected in (
        (wire.receive, b'{"failed": "why"}', ({"failed": "why"}, [])),
        (lambda end: wire.receive_bytes(end, 100), b"it is over", b"it is over"),
    ):
        ours, theirs = wire.pair()
        wire.send(ours, {"do": "more"})
        theirs.send(last)
        theirs.close()
        with ours:
            assert receive(ours) == expected
            with pytest.raises(wire.ClosedError):
                receive(ours)
            with pytest.raises(wire.ClosedError):
                wire.send(ours, {})

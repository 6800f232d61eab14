"""What became of a connection's bytes: sums, parts, bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.events import JsonValue
from belljar.network.gateway.site import (
    KEPT_BYTES,
    LATE_BODY,
    LATE_BODY_BYTES,
    PART_BYTES,
    Account,
    Incoming,
)

PLACE: dict[str, JsonValue] = {
    "cell": "agent",
    "address": "10.0.0.1",
    "port": 80,
    "source_port": 1024,
}


@pytest.mark.promise("5.4")
@given(
    st.lists(st.tuples(st.sampled_from(["record", "frame", "remain", "lose"]), st.integers(0, 50)))
)
def test_what_is_nowhere_is_missing(steps: list[tuple[str, int]]) -> None:
    """Received bytes are the sum of all others, whatever came; a connection with a missing byte is
    not accounted for."""
    account, lost = Account(), 0
    for step, size in steps:
        account.receive(size)
        if step == "lose":
            lost += size
        elif step == "remain":
            account.remain("x", bytes(size))
        else:
            getattr(account, step)(size)
    data = account.item(dict(PLACE), closed=True).data
    names = ("recorded_bytes", "framing_bytes", "remainder_bytes", "missing_bytes")
    assert data["received_bytes"] == sum(int(str(data[name])) for name in names)
    assert (data["missing_bytes"], data["accounted"]) == (lost, lost == 0)


@pytest.mark.promise("5.4")
def test_unread_bytes_are_not_accounted_for() -> None:
    """What stayed in the kernel is in no event."""
    account = Account()
    account.unread_bytes = 1
    assert account.item(dict(PLACE), closed=True).data["accounted"] is False


@pytest.mark.promise("5.4")
def test_each_part_of_the_remainder_is_in_one_event() -> None:
    """A part that is due is told while the connection goes on; the last event has the rest, and the
    sum of all."""
    account = Account()
    account.remain("x", b"a" * PART_BYTES)
    assert account.is_part_due
    first = account.item(dict(PLACE), closed=False)
    assert not account.is_part_due
    account.remain("y", b"b")
    last = account.item(dict(PLACE), closed=True)
    assert [body.content for item in (first, last) for body in item.bodies] == [
        b"a" * PART_BYTES,
        b"b",
    ]
    assert last.data["remainder"] == {"x": PART_BYTES, "y": 1}
    assert (first.data["accounted"], first.data["phase"], last.data["phase"]) == (
        False,
        "open",
        "closed",
    )


def test_more_than_is_kept_is_in_the_digest() -> None:
    """Truncation is declared."""
    account = Account()
    account.remain("x", b"a" * (KEPT_BYTES + 5))
    body = account.item(dict(PLACE), closed=True).bodies[0]
    assert (len(body.content), body.total_bytes) == (KEPT_BYTES, KEPT_BYTES + 5)


@pytest.mark.promise("5.4")
def test_the_bound_grows_with_what_is_recorded() -> None:
    """A connection of many messages may have many masks; one without any may not."""
    account = Account(free_bytes=100)
    account.remain("ws_mask", bytes(101))
    assert account.is_over
    account.record(10)
    assert not account.is_over


@pytest.mark.promise("5.4")
def test_a_late_body_counts_only_beyond_the_window() -> None:
    """512 KiB of each request that was answered before its body came."""
    account = Account(free_bytes=100)
    incoming = Incoming(account, b"head", [], is_text=True)
    incoming.leave()
    incoming.came(bytes(LATE_BODY_BYTES))
    assert not account.is_over
    incoming.came(bytes(200))
    assert account.is_over
    assert account.item(dict(PLACE), closed=True).data["remainder"] == {
        "head": 4,
        LATE_BODY: LATE_BODY_BYTES + 200,
    }


def test_a_request_that_is_over_holds_no_memory() -> None:
    """A connection of HTTP/2 has a thousand requests, with heads of 64 KiB."""
    incoming = Incoming(Account(), bytes(64 << 10), [(b"x", bytes(64 << 10))], is_text=False)
    assert incoming.claim_head() == 64 << 10
    incoming.leave()
    assert (incoming.head, incoming.fields) == (b"", [])


def test_what_is_held_is_given_back_before_the_end() -> None:
    """The last event knows of it, an event before the last does not take it away."""
    account = Account()
    account.receive(3)
    account.before_end(lambda: account.remain("held", b"abc"))
    assert account.item(dict(PLACE), closed=False).bodies == ()
    assert account.has_unrecorded
    assert account.item(dict(PLACE), closed=True).bodies[0].content == b"abc"

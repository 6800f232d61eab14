"""The end of a gateway's process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.gateway import MAIL, Gateway, running

from belljar.events import Kind

GET = b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n"
ENDED = "the range ended"
MANY = 200


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with running(tmp_path) as found:
        yield found


def test_what_waits_for_the_record_is_told_at_the_end(gateway: Gateway) -> None:
    """An owner who acknowledges nothing more holds the end up for no longer than he allows."""
    gateway.owner.hold()
    with gateway.connect("http") as post, gateway.connect("smtp", MAIL):
        post.sendall(GET)
        gateway.owner.first(Kind.NETWORK_HTTP)
        gateway.owner.first(Kind.NETWORK_STREAM)
        gateway.owner.end(0.5)
    gateway.owner.first(Kind.NETWORK_HTTP_ANSWERED)
    gateway.owner.first(Kind.NETWORK_STREAM, phase="closed", reason=ENDED)


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("within_s", [20.0, 0.001])
def test_many_at_once_are_told_or_counted(gateway: Gateway, within_s: float) -> None:
    """Half a head on each of many connections."""
    with contextlib.ExitStack() as stack:
        for number in range(MANY):
            stack.enter_context(gateway.connect("http")).sendall(b"GET /%d HTTP/1.1\r\nHo" % number)
        post = stack.enter_context(gateway.connect("http"))
        post.sendall(GET)
        post.recv(1)  # so what was sent before is read
        unreported = gateway.owner.end(within_s).data["unreported"]
    told = sum(data["reason"] == ENDED for data in gateway.owner.of(Kind.NETWORK_HTTP))
    assert told + unreported >= MANY if within_s < 1 else (told, unreported) == (MANY, 0)

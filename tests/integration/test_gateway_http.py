"""HTTP through a gateway's process."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.fakes.gateway import SHOP, Gateway, is_silent, read_all, running

from belljar.events import Kind

if TYPE_CHECKING:
    from playwright.sync_api import Browser

GET = b"GET %s HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"


@pytest.mark.promise("5.5")
def test_a_browser_gets_a_page_over_tls(chromium: Callable[..., Browser], tmp_path: Path) -> None:
    """It offers HTTP/2 and post-quantum keys, and falls back; what it asks is on record."""
    with running(tmp_path, kinds={"shop": "catch_all"}) as gateway:
        page = chromium(f"--host-resolver-rules=MAP shop.example {SHOP}").new_page(
            ignore_https_errors=True
        )
        url = f"https://shop.example:{gateway.ports['tls']}/about-us"
        reply = page.goto(url)
        assert reply is not None
        assert (reply.status, page.inner_text("h1")) == (200, "Shop")
        asked = gateway.owner.first(Kind.NETWORK_HTTP, url=url)
        assert asked.data["version"] == "1.1"


def test_a_request_and_its_answer_are_on_record(gateway: Gateway) -> None:
    """Who, what, to whom, and the bytes of both."""
    gateway.exchange(
        b"POST /p?q HTTP/1.1\r\nHost: Shop.Example\r\nContent-Length: 5\r\nConnection:"
        b" close\r\n\r\nhello"
    )
    gateway.exchange(GET % b"/attempt")
    kinds = [event.kind for event in gateway.owner.events][-3:]
    assert kinds == [Kind.NETWORK_HTTP, Kind.NETWORK_ATTEMPT, Kind.NETWORK_HTTP_ANSWERED]
    asked = gateway.owner.first(Kind.NETWORK_HTTP)
    assert asked.data["url"] == "http://Shop.Example/p?q"
    assert (
        asked.data["cell"],
        asked.data["stand_in"],
        asked.data["method"],
        asked.data["complete"],
    ) == ("agent", "shop", "POST", True)
    assert asked.bodies[0].content == b"hello"
    answered = gateway.owner.first(Kind.NETWORK_HTTP_ANSWERED, exchange=asked.data["exchange"])
    assert answered.data["status"] == 200
    assert b'"body":"hello"' in answered.bodies[0].content


@pytest.mark.promise("5.4")
def test_nothing_is_answered_before_it_is_on_record(gateway: Gateway) -> None:
    """While the owner says nothing not one byte leaves: no answer, refusal, certificate, alert."""
    gateway.owner.hold()
    plain = gateway.connect("http")
    plain.sendall(GET % b"/")
    wrong = gateway.connect("http")
    wrong.sendall((GET % b"/").replace(b"shop.example", b"evil.example"))
    broken = gateway.connect("http")
    broken.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
    hello = gateway.connect("tls")
    hello.sendall(client_hello("shop.example"))
    refused = gateway.connect("tls")
    refused.sendall(client_hello("evil.example"))
    none = gateway.connect("tls")
    none.sendall(b"\x16\3\1\0\5\2hello")  # a message that no client begins with
    gateway.owner.wait(
        lambda: (
            len(gateway.owner.of(Kind.NETWORK_HTTP)) == 3
            and len(gateway.owner.of(Kind.NETWORK_TLS)) == 3
        )
    )
    for sock in (plain, wrong, broken, hello, refused, none):
        assert is_silent(sock)
    gateway.owner.release()
    assert read_all(plain).startswith(b"HTTP/1.1 200 ")
    assert read_all(wrong).startswith(b"HTTP/1.1 421 ")
    assert read_all(broken).startswith(b"HTTP/1.1 400 ")
    assert hello.recv(1) == b"\x16"
    assert read_all(refused) == b"\x15\x03\x03\0\2\2\x70"
    assert read_all(none)[:1] == b"\x15"
    for sock in (plain, wrong, broken, hello, refused, none):
        sock.close()


def client_hello(name: str) -> bytes:
    context = ssl.create_default_context()
    out = ssl.MemoryBIO()
    engine = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        engine.do_handshake()
    return out.read()


def test_an_answer_in_pieces(gateway: Gateway) -> None:
    """A request is whole, and on record, before its stand-in is asked."""
    assert gateway.curl("-d", "x" * 100_000, path="/stream")[1].startswith("piece 0\n")
    last = gateway.owner.of(Kind.NETWORK_HTTP_ANSWERED)[-1]
    assert (last["bytes"], last["request_bytes"]) == (40, 100_000)


def test_a_large_answer_arrives_and_is_kept_in_part(gateway: Gateway) -> None:
    """8 MiB; 64 KiB of it in the record, and the digest of all."""
    status, said = gateway.curl("-o", "/dev/null", "-w", "%{size_download}", path="/big")
    assert (status, said) == (0, str(8 << 20))
    (body,) = gateway.owner.first(Kind.NETWORK_HTTP_ANSWERED).bodies
    assert (len(body.content), body.total_bytes) == (64 << 10, 8 << 20)
    assert b" 500 " in gateway.exchange(GET % b"/crash")
    failed = gateway.owner.of(Kind.NETWORK_HTTP_ANSWERED)[-1]
    assert failed["reason"] == "the stand-in failed: RuntimeError"
    assert b" 200 " in gateway.exchange(GET % b"/")


@pytest.mark.promise("4.5")
def test_a_stand_in_that_never_ends_stops_the_heartbeat(tmp_path: Path) -> None:
    """Its owner hears of no further turn of the loop."""
    with running(tmp_path, alive_every_s=0.05) as gateway, gateway.connect("http") as sock:
        assert all(gateway.owner.hears_heartbeat(20) for _ in range(5))
        sock.sendall(GET % b"/spin")
        assert not all(gateway.owner.hears_heartbeat(1) for _ in range(20))
        with gateway.connect("http") as other:
            other.sendall(GET % b"/")
            assert not gateway.owner.hears_heartbeat(1)
        assert gateway.owner.of(Kind.NETWORK_HTTP_ANSWERED) == []

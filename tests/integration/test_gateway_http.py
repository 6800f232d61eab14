"""HTTP through a gateway's process: real clients, and what goes on record before they are
answered."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from tests.fakes.gateway import OTHER, SHOP, WILD, Gateway, is_silent, read_all, running

from belljar.events import Kind

if TYPE_CHECKING:
    from playwright.sync_api import Browser

GET = b"GET %s HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for all of these, with the usual bounds."""
    with running(tmp_path_factory.mktemp("gateway")) as found:
        yield found


@pytest.fixture(autouse=True)
def _fresh(gateway: Gateway) -> None:
    gateway.owner.events.clear()


@pytest.mark.parametrize("option", ["--http1.1", "--http2"])
def test_curl_gets_answers_over_tls(gateway: Gateway, option: str) -> None:
    """A client that offers HTTP/2 falls back; an exact name and a wildcard's, with the range's
    authority alone trusted."""
    for name, owner in (("shop.example", "shop"), ("a.shop.example", "wild")):
        status, said = gateway.curl(option, "-d", "hello", name=name, path="/x?y=1")
        assert status == 0, said
        body, _, last = said.rpartition("\n")
        seen = json.loads(body)
        assert last == "200 1.1"
        assert (seen["stand_in"], seen["path"], seen["query"], seen["body"]) == (
            owner,
            "/x",
            "y=1",
            "hello",
        )
        assert seen["state"] == {"cell": "agent", "name": name}


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
    assert b'"body": "hello"' in answered.bodies[0].content


@pytest.mark.promise("5.4")
def test_nothing_is_answered_before_it_is_on_record(gateway: Gateway) -> None:
    """As long as the owner says nothing, not one byte leaves: no answer, no refusal, no certificate
    and no alert."""
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
    """What OpenSSL says first."""
    context = ssl.create_default_context()
    out = ssl.MemoryBIO()
    engine = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        engine.do_handshake()
    return out.read()


def test_an_answer_in_pieces_and_one_that_reads_nothing(gateway: Gateway) -> None:
    """A request is whole, and on record, before its stand-in is asked."""
    body = b"x" * 100_000
    assert gateway.curl(path="/stream")[1].startswith("piece 0\n")
    status, said = gateway.curl("-H", "Expect:", "-d", body.decode(), path="/early")
    assert (status, said.split("\n")[0]) == (0, "early")
    last = gateway.owner.of(Kind.NETWORK_HTTP_ANSWERED)[-1]
    assert (last["bytes"], last["request_bytes"]) == (5, len(body))


def test_a_large_answer_arrives_and_is_kept_in_part(gateway: Gateway) -> None:
    """8 MiB; 64 KiB of it in the record, and the digest of all."""
    status, said = gateway.curl("-o", "/dev/null", "-w", "%{size_download}", path="/big")
    assert (status, said) == (0, str(8 << 20))
    (body,) = gateway.owner.first(Kind.NETWORK_HTTP_ANSWERED).bodies
    assert (len(body.content), body.total_bytes) == (64 << 10, 8 << 20)


def test_a_stand_in_that_fails_fails_alone(gateway: Gateway) -> None:
    """500, on record with the fault's name; the gateway goes on."""
    assert b" 500 " in gateway.exchange(GET % b"/crash")
    assert (
        gateway.owner.of(Kind.NETWORK_HTTP_ANSWERED)[-1]["reason"]
        == "the stand-in failed: RuntimeError"
    )
    assert b" 200 " in gateway.exchange(GET % b"/")


@pytest.mark.promise("4.5")
def test_a_stand_in_that_never_ends_stops_the_heartbeat(tmp_path: Path) -> None:
    """Its owner hears of no further turn of the loop, and ends the range as of any part that hangs
    (`test_a_part_that_hangs_ends_the_range`); until then nobody gets an answer."""
    with running(tmp_path, alive_every_s=0.05) as gateway, gateway.connect("http") as sock:
        assert all(gateway.owner.hears_heartbeat(20) for _ in range(5))
        sock.sendall(GET % b"/spin")
        assert not all(gateway.owner.hears_heartbeat(1) for _ in range(20))
        with gateway.connect("http") as other:
            other.sendall(GET % b"/")
            assert not gateway.owner.hears_heartbeat(1)
        assert gateway.owner.of(Kind.NETWORK_HTTP_ANSWERED) == []


def test_an_absolute_target_reaches_the_stand_in_as_a_path(gateway: Gateway) -> None:
    """As by a client that was told of a proxy; for another host it is refused."""
    said = gateway.exchange(GET % b"http://shop.example/a%20b?c")
    assert b'"path": "/a b", "query": "c"' in said
    assert gateway.exchange(GET % b"http://other.example/").startswith(b"HTTP/1.1 421 ")
    assert gateway.exchange(
        b"CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example:443\r\n\r\n"
    ).startswith(b"HTTP/1.1 405 ")


def test_requests_follow_on_one_connection(gateway: Gateway) -> None:
    """Keep-alive and pipelining: each is judged by itself."""
    with gateway.connect("http") as sock:
        sock.sendall(
            b"GET /1 HTTP/1.1\r\nHost: shop.example\r\n\r\nGET /2 HTTP/1.1\r\nHost:"
            b" shop.example\r\n\r\n" + GET % b"/3"
        )
        said = read_all(sock)
    assert said.count(b"HTTP/1.1 200") == 3
    assert [url["url"][-1] for url in gateway.owner.of(Kind.NETWORK_HTTP)] == ["1", "2", "3"]


def test_httpx_falls_back_and_asks_many_at_once(gateway: Gateway) -> None:
    """A hundred requests of a client that offers HTTP/2: all answered, all on record."""
    context = ssl.create_default_context(cafile=str(gateway.authority))
    port = gateway.ports["tls"]

    async def scene() -> set[int]:
        transport = httpx.AsyncHTTPTransport(http2=True, verify=context, local_address="127.0.0.1")
        async with (
            httpx.AsyncClient(transport=transport, timeout=20) as client,
            asyncio.TaskGroup() as group,
        ):
            extensions = {"sni_hostname": "shop.example"}
            headers = {"Host": f"shop.example:{port}"}
            tasks = [
                group.create_task(
                    client.post(
                        f"https://{SHOP}:{port}/n{n}",
                        content=b"z" * n,
                        headers=headers,
                        extensions=extensions,
                    )
                )
                for n in range(100)
            ]
            answers = [await task for task in tasks]
        assert {answer.http_version for answer in answers} == {"HTTP/1.1"}
        return {answer.status_code for answer in answers}

    assert asyncio.run(scene()) == {200}
    assert len(gateway.owner.of(Kind.NETWORK_HTTP_ANSWERED)) == 100


def test_names_that_do_not_agree_are_refused_over_tls(gateway: Gateway) -> None:
    """SNI ≠ Host, a name at another's address, an address for a name: 421 or an alert, each on
    record."""
    assert gateway.curl("-H", "Host: other.example")[1].endswith("421 1.1")
    port = gateway.ports["tls"]
    for name, address in (("shop.example", WILD), ("other.example", SHOP), ("evil.example", SHOP)):
        status, said = gateway.curl(
            "--resolve",
            f"{name}:{port}:{address}",
            "--connect-to",
            f"::{address}:{port}",
            name=name,
        )
        assert status == 35, said
        assert "unrecognized name" in said
    status, said = gateway.curl("-k", name=SHOP)
    assert status == 35, said
    reasons = [
        event["reason"]
        for event in gateway.owner.of(Kind.NETWORK_TLS)
        if event["verdict"] == "refused"
    ]
    assert reasons == [
        "the name has another address",
        "the name has another address",
        "the policy does not have this name",
        "no SNI",
    ]


def test_another_cell_s_address_is_named_as_none(gateway: Gateway) -> None:
    """A connection from an address that no cell has is on record as nobody's."""
    sock = __import__("socket").create_connection(
        (OTHER, gateway.ports["http"]), source_address=("127.0.0.88", 0), timeout=20
    )
    with sock:
        sock.sendall((GET % b"/").replace(b"shop.example", b"other.example"))
        read_all(sock)
    assert gateway.owner.of(Kind.NETWORK_HTTP)[-1]["cell"] == ""

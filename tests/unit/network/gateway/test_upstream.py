"""The gateway's side of a real upstream, against a web server of this host's."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.real_world import WebServer, web_server
from tests.fakes.web import answered

from belljar.network.gateway.config import Bounds, as_stand_in
from belljar.network.gateway.site import Site
from belljar.network.gateway.upstream import REWRITING, UpstreamApp, rewritten
from belljar.network.stand_ins.web import RefusedRequestError, Request
from belljar.plan.network import UpstreamPlan

HOST = "real.example"


class Asker:
    """One upstream, and who asks it: the owner dials whatever server there is."""

    def __init__(
        self, server: WebServer, trust: str = "", *, port: int = 80, exchange_s: float = 60.0
    ) -> None:
        self.instead: socket.socket | None = None  # of a connection to the server
        self.dialled: list[tuple[str, int, str]] = []
        self._server, self.port = server, port

        async def dial(host: str, port: int, stand_in: str) -> socket.socket:
            self.dialled.append((host, port, stand_in))
            sock = self.instead or server.dial()
            sock.setblocking(False)
            return sock

        bounds = Bounds(upstream_exchange_s=exchange_s)

        reporter = SimpleNamespace(dial=dial)
        budgets = {"budget_bytes": 1 << 20, "run_budget_bytes": 100 << 20}
        plan = UpstreamPlan(host=HOST, ports=(port,), methods=("GET",), reason="a test", **budgets)
        site = cast("Site", SimpleNamespace(bounds=bounds, reporter=reporter))
        self.app: UpstreamApp = UpstreamApp(as_stand_in(plan), site, trust)

    async def ask(
        self,
        path: str = "/",
        method: str = "GET",
        body: bytes = b"",
        headers: Any = (),  # noqa: ANN401 - pairs, or a mapping
    ) -> Any:  # noqa: ANN401 - (status, headers, body)
        raw, _, query = path.encode().partition(b"?")
        fields = [(b"host", b"Real.Example:1"), *headers]
        request = Request(
            method=method,
            path=raw.decode(),
            raw_path=raw.decode(),
            query_string=query.decode(),
            headers=tuple((name.decode(), value.decode()) for name, value in fields),
            body=body,
            port=self.port,
        )
        reply = await answered(self.app, request)
        return reply.status, reply.headers, reply.body


def run(scene: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the scene gives
    return asyncio.run(scene())


def refused(asker: Asker, path: str = "/", **options: Any) -> tuple[int, str]:  # noqa: ANN401 - of `ask`
    with pytest.raises(RefusedRequestError) as caught:
        run(lambda: asker.ask(path, **options))
    return caught.value.status, caught.value.reason


def test_a_request_reaches_the_upstream_and_its_answer_comes_back() -> None:
    """Method, path, query, fields, body; one Host, the upstream's; nothing hop by hop."""
    hop = [(b"connection", b"x-private, close"), (b"x-private", b"1"), (b"te", b"trailers")]
    kept = [(b"upgrade", b"h2c"), (b"x-kept", b"1"), (b"accept-encoding", b"gzip")]
    with web_server() as server:
        asker = Asker(server)
        status, headers, body = run(
            lambda: asker.ask("/a%20b?c=d", "POST", b"y" * 2500, [*hop, *kept])
        )
    (got,) = server.requests
    assert (status, json.loads(body)["path"]) == (200, "/a%20b?c=d")
    assert (got["method"], got["path"], got["body"]) == ("POST", "/a%20b?c=d", "y" * 2500)
    assert got["headers"] == [
        ("host", HOST),
        ("x-kept", "1"),
        ("accept-encoding", "gzip"),
        ("content-length", "2500"),
        ("connection", "close"),
    ]
    names = [name for name, _ in headers]
    assert "x-own" in names
    assert not {"alt-svc", "connection", "x-hop"} & set(names)
    assert asker.dialled == [(HOST, 80, "upstream:real.example")]


def spellings(name: bytes) -> list[bytes]:
    """Of one field for a server that makes a variable of it."""
    return [
        name,
        name.replace(b"-", b"_"),
        name.replace(b"-", b".").upper(),
        name.title().replace(b"-", b"_", 1),
    ]


@pytest.mark.promise("2.7")
def test_no_field_of_the_connections_is_passed_on() -> None:
    """Many servers know no difference between `-` and `_`."""
    hop = [
        (spelled, b"x")
        for name in (b"transfer-encoding", b"te", b"content-length", b"host")
        for spelled in spellings(name)[1:]
    ]
    with web_server() as server:
        run(lambda: Asker(server).ask(headers=hop))
    assert server.requests[0]["headers"] == [("host", HOST), ("connection", "close")]


@pytest.mark.promise("2.7")
@pytest.mark.parametrize(
    "name",
    [
        *sorted(REWRITING),
        *(b"x-forwarded-host", b"x-forwarded-prefix"),
        *(b"x-original-url", b"x-rewrite-url", b"x-override-url"),
    ],
)
def test_a_field_that_makes_another_request_is_refused(name: bytes) -> None:
    """In any spelling; nothing is dialled."""
    with web_server() as server:
        for spelled in spellings(name):
            asker = Asker(server)
            status, reason = refused(asker, headers=[(spelled, b"/admin")])
            assert (status, asker.dialled) == (400, [])
            assert "another request" in reason


FORM = (b"content-type", b"application/x-www-form-urlencoded; charset=utf-8")
PARTS = (b"content-type", b"Multipart/form-data; boundary=b")
TEXT = (b"content-type", b"text/plain")
Fields = list[tuple[bytes, bytes]]


def part(disposition: bytes, value: bytes = b"DELETE") -> bytes:
    return b"--b\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n--b--" % (disposition, value)


JUDGED: list[tuple[bool, bytes, Fields, bytes]] = [
    # Refused: a parameter that frameworks read a method from, or what looks like one
    *(
        (False, query, [], b"")
        for query in (
            *(b"_method=DELETE", b"a=b&%5Fmethod=%44ELETE", b"a=b;_METHOD=put", b"_method"),
            *(b"_method[]=DELETE", b"_method=GET&_method=DELETE"),
            *(b"x_http_method_override=DELETE", b"http-method-override=DELETE"),
        )
    ),
    (False, b"", [FORM], b"a=b&_method=DELETE"),
    (False, b"", [(b"Content_Type", FORM[1])], b"%5f%6Dethod=DELETE"),
    (False, b"", [FORM], b"a=" + b"x" * (1 << 20)),
    (False, b"", [FORM, (b"content_type", TEXT[1])], b"_method=DELETE"),
    (False, b"", [PARTS], part(b'NAME = "_method"')),
    (False, b"", [PARTS], part(b'name="%5fme%74hod"')),
    (False, b"", [TEXT, PARTS], part(b"name=_method")),
    (False, b"", [PARTS], part(b'name="a"', b"_method")),
    # Passed on: another name, another kind of body
    (True, b"method=DELETE&_methods=1", [], b""),
    (True, b"", [(b"x-request-id", b"1"), (b"x-real-ip", b"1.2.3.4")], b""),
    (True, b"", [TEXT], b"_method=DELETE"),
]


@pytest.mark.promise("2.7")
@pytest.mark.parametrize(("passes", "query", "headers", "body"), JUDGED)
def test_a_parameter_that_names_another_method_is_refused(
    passes: bool, query: bytes, headers: Fields, body: bytes
) -> None:
    """In a query, a form or a part of one, encoded or not; what only looks like it passes."""
    assert (rewritten(headers, query, body) == "") is passes


@given(
    st.binary(max_size=200),
    st.binary(max_size=200),
    st.sampled_from([FORM, PARTS, (b"content-type", b"x")]),
)
def test_whatever_a_form_holds_is_judged(
    query: bytes, body: bytes, kind: tuple[bytes, bytes]
) -> None:
    """Any bytes are a sentence or none; a parameter for another method is found among them."""
    assert isinstance(rewritten([kind], query, body), str)
    assert rewritten([kind], query + b"&_method=DELETE", body)


@pytest.mark.promise("2.7")
@pytest.mark.parametrize("path", ["/drip", "/drip-head"])
def test_an_answer_that_drips_is_given_up_in_all(path: str) -> None:
    """Each byte comes long before the idle bound."""
    with web_server() as server:
        assert refused(Asker(server, exchange_s=0.6), path) == (504, "the upstream took too long")


def test_an_answer_that_the_owner_cuts_is_an_error() -> None:
    """Though it has no length: a cut relay ends both ways, one whose upstream is done ends one."""
    answer = b"HTTP/1.1 200 OK\r\n\r\nbegun"
    with web_server() as server:
        asker = Asker(server)
        for how in (socket.SHUT_WR, socket.SHUT_RDWR):
            inner, theirs = socket.socketpair()
            inner.sendall(answer)
            inner.shutdown(how)
            theirs.setblocking(False)
            asker.instead = theirs
            with inner:
                if how == socket.SHUT_WR:
                    assert run(asker.ask)[2] == b"begun"
                else:
                    assert refused(asker) == (502, "the upstream: Broken pipe")

"""The stand-in `catch_all`: any name and path get something plausible, and what is sent anywhere is
on record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.asgi import Client, Recorded, context

from belljar.network.stand_ins import catch_all


@pytest.fixture
def app() -> Client:
    """A catch-all."""
    return Client(catch_all.make(context()), host="www.acme-news.example")


@pytest.mark.parametrize(
    ("method", "url", "status", "kind"),
    [
        ("GET", "/", 200, "text/html; charset=utf-8"),
        ("GET", "/api/items", 200, "application/json"),
        ("POST", "/v1/users", 201, "application/json"),
        ("DELETE", "/v1/users/3", 204, ""),
        ("GET", "/robots.txt", 200, "text/plain; charset=utf-8"),
        ("GET", "/favicon.ico", 200, "image/gif"),
    ],
)
def test_the_shape_follows_from_what_is_asked(
    app: Client, method: str, url: str, status: int, kind: str
) -> None:
    """Pages, APIs and the usual files are recognised."""
    reply = app.ask(method, url)
    assert (reply.status, reply.header("content-type")) == (status, kind)


def test_nothing_of_a_name_is_markup(app: Client) -> None:
    """The title is the host's, escaped."""
    assert "<b>" not in app.ask("GET", "/", headers={"host": "<b>.example"}).text.lower()


def test_what_is_sent_is_an_attempt() -> None:
    """A request that writes is on record with its body; one that reads isn't, besides the gateway's
    own record."""
    record = Recorded()
    app = Client(catch_all.make(context(record=record)))
    app.get("/x")
    assert record.events == []
    app.ask("POST", "/paste", body=b"secret")
    ((kind, data, bodies),) = record.events
    assert (kind, data["what"], data["url"], data["body_bytes"]) == (
        "network.attempt",
        "send",
        "http://shop.example/paste",
        6,
    )
    assert [body.content for body in bodies] == [b"secret"]


def test_what_is_sent_in_part_is_an_attempt_too() -> None:
    """One that is over the bound; what had come of it is kept in part. (`test_gateway_broken_off`
    has one whose client goes away.)"""
    record = Recorded()
    assert (
        Client(catch_all.make(context(record=record)))
        .ask("PUT", "/x", body=bytes((1 << 20) + 1))
        .status
        == 413
    )
    ((_, data, bodies),) = record.events
    assert (data["what"], data["body_bytes"], data["refused"]) == (
        "send",
        (1 << 20) + 1,
        "the body is over the bound",
    )
    assert len(bodies[0].content) == 64 << 10


@given(
    st.text(max_size=60),
    st.text(st.characters(codec="latin-1", exclude_characters="\r\n\0"), max_size=40),
    st.binary(max_size=60),
)
def test_anything_is_answered(path: str, host: str, body: bytes) -> None:
    """No host, path or body makes it fail."""
    from urllib.parse import quote

    app = Client(catch_all.make(context()))
    reply = app.ask(
        "POST",
        "/" + quote(path, safe="/?", errors="replace"),
        body=body,
        headers={"host": host, "origin": host, "content-type": host},
    )
    assert reply.status in (200, 201, 204)

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


def test_a_large_upload_is_taken() -> None:
    """As by any server; its beginning is kept."""
    record = Recorded()
    app = Client(catch_all.make(context(record=record)))
    assert app.ask("PUT", "/x", body=bytes((1 << 20) + 1)).status == 200
    ((_, data, bodies),) = record.events
    assert (data["what"], data["body_bytes"]) == ("send", (1 << 20) + 1)
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

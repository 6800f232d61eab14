"""The stand-in `catch_all`."""

from __future__ import annotations

from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.web import Client, Recorded, context

from belljar.network.stand_ins import catch_all

HOSTS = st.text(st.characters(codec="latin-1", exclude_characters="\r\n\0"), max_size=40)


def test_what_is_sent_is_an_attempt() -> None:
    """A request that writes is on record with its body, of a large one the beginning."""
    record = Recorded()
    app = Client(catch_all.make(context(record=record)))
    assert "<b>" not in app.get("/x", host="<b>.example").text.lower()
    assert record.events == []
    for body in (b"secret", bytes((1 << 20) + 1)):
        assert app.ask("PUT", "/paste", body=body).status == 200
        data, bodies = record.events[-1]
        assert (data["what"], data["url"]) == ("send", "http://shop.example/paste")
        assert data["body_bytes"] == len(body)
        assert [kept.content for kept in bodies] == [body[: 64 << 10]]


@given(st.text(max_size=60), HOSTS, st.binary(max_size=60))
def test_anything_is_answered(path: str, host: str, body: bytes) -> None:
    """No host, path or body makes it fail."""
    app = Client(catch_all.make(context()))
    headers = {"host": host, "origin": host, "content-type": host}
    below = "/" + quote(path, safe="/?", errors="replace")
    assert app.ask("POST", below, body=body, headers=headers).status in (200, 201, 204)

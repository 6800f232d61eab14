"""The admin page of a decoy: only its login opens it, and only to the visitor who signed in."""

from __future__ import annotations

import pytest
from tests.fakes.asgi import Client, context

from belljar.network.stand_ins import http

ROWS = [
    {"id": "1", "name": "<b>Ada</b>", "card": "9999000011112222"},
    {"id": "2", "name": "Eve, M", "card": "9999000011113333"},
]
CSV = 'id,name,card\n1,<b>Ada</b>,9999000011112222\n2,"Eve, M",9999000011113333\n'
SETTINGS = {"login": {"user": "admin", "password": "s3cret"}, "rows": ROWS, "csv": CSV}
GOOD = {"username": "admin", "password": "s3cret"}


@pytest.fixture
def page() -> Client:
    """One visitor."""
    return Client(http.make(context(SETTINGS)))


def sign_in(page: Client, **fields: str) -> int:
    """The status that these fields get."""
    body = "&".join(f"{name}={value}" for name, value in fields.items())
    kind = {"content-type": "application/x-www-form-urlencoded"}
    return page.ask("POST", "/login", body=body.encode(), headers=kind).status


def test_only_the_login_opens_it(page: Client) -> None:
    """A wrong, partial or missing login, or an invented session, shows no row."""
    for fields in ({**GOOD, "password": "x"}, {"username": "admin"}, {"password": "s3cret"}, {}):
        assert sign_in(page, **fields) == 401
    invented = Client(page.app, cookies={"sid": "0" * 32})
    for visitor in (page, invented):
        for path in ("/", "/customers", "/customers.csv"):
            reply = visitor.get(path)
            assert (reply.status, reply.header("location")) == (302, "/login")
    assert sign_in(page, **GOOD) == 302
    assert "<td>9999000011112222</td>" in page.get("/customers").text
    assert "&lt;b&gt;Ada" in page.get("/customers").text
    assert page.get("/customers.csv").text.splitlines()[2] == '2,"Eve, M",9999000011113333'
    assert page.get("/").header("location") == "/customers"
    assert Client(page.app).get("/customers").status == 302
    page.get("/logout")
    assert page.get("/customers").status == 302

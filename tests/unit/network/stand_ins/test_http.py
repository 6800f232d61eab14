"""The stand-in `http`: routes and files do what the author wrote, and no more, whatever a guest
sends; and the admin page of a decoy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from tests.fakes.web import Client, context

from belljar.network.stand_ins import http, make
from belljar.policy.guarding import DecoyKind
from belljar.policy.model import DecoySpec
from belljar.signals.decoys import mint_service

SITE = """\
routes:
  - {path: /, body: "<h1>Hello {{ query.who | default('you') }}</h1>"}
  - {path: /raw, type: text/html, body: "{{ query.who | safe }}"}
  - {path: /open, body: "{% if query.password == cookie.password %}open{% endif %}"}
  - {path: /times, json: "{{ query.text * 9 }}"}
  - {path: /method, json: "{{ body.upper }}"}
  - {path: "/page/{name}", template: page.html}
  - {path: /js, type: application/javascript, body: 'const all = {{ query.q | tojson }};'}
  - {path: "/files/{rest...}", body: "{{ path.rest }}"}
  - {path: /one, file: assets/a.txt}
  - {path: /large, file: disk.img}
"""
SHOP = YAML(typ="safe", pure=True).load(SITE)


def site_of(*routes: Mapping[str, object], **cookies: str) -> Client:
    return Client(http.make(context({"routes": list(routes)})), cookies=cookies)


@pytest.fixture
def shop(tmp_path: Path) -> Client:
    (tmp_path / "assets").mkdir()
    with (tmp_path / "assets/a.txt").open("w") as file:
        file.write("0123456789")
    with (tmp_path / "disk.img").open("wb") as image:  # served in pieces, never read whole
        image.truncate(1 << 40)
    (tmp_path / "page.html").write_text(
        "<p>{{ path.name }}</p><a href='/?q={{ path.name | urlencode }}'>"
    )
    assert http.check(SHOP, tmp_path) == ()
    return Client(make("http", context(SHOP, tmp_path)))


def test_what_a_route_answers(shop: Client) -> None:
    """Text of a request is escaped in markup."""
    for url, text in {
        "/?who=%3Cb%3E": "<h1>Hello &lt;b&gt;</h1>",
        "/": "<h1>Hello you</h1>",
        "/raw?who=%3Cb%3E": "<b>",
        "/page/a%22b": "<p>a&#34;b</p><a href='/?q=a%22b'>",
        "/js?q=%22%3C/script%3E": r'const all = "\"\u003c/script\u003e";',
        "/files/a%2Fb/c": "a/b/c",
        "/one": "0123456789",
        "/open": "",
    }.items():
        assert shop.get(url).text == text, url
    assert shop.ask("HEAD", "/large").status == 200
    assert shop.get("/open?password=a", cookie="password=a").text == "open"
    for url, status in {
        "/page/a/b": 404,
        "/files/": 404,
        "/times?text=a": 500,
        "/method": 500,
    }.items():
        assert shop.get(url).status == status, url


def test_what_a_guest_can_not_do_to_an_answer() -> None:
    """Line breaks and controls never reach a field; a page above the bound is a 500."""
    split = {"path": "/", "headers": {"x-q": "{{ query.q }}"}}
    grown = {"path": "/", "method": "POST", "body": "{{ body }}" * 10, "type": "text/plain"}
    app = site_of(split, grown)
    reply = app.get("/?q=a%0d%0aset-cookie:%20x=1;%00b")
    assert reply.header("x-q") == "aset-cookie: x=1;b"
    assert not reply.header("set-cookie")
    assert app.ask("POST", "/", body=b"x" * 1_000_000).status == 500


@pytest.mark.parametrize(
    ("route", "field", "what"),
    [
        ({"path": "/{a}/{a}"}, "path", "two parameters"),
        ({"path": "/", "bdy": "x"}, "bdy", "no such field"),
        ({"path": "/", "body": "{{ x"}, "body", "unexpected end"),
        ({"path": "/", "json": {"a": ["{{"]}}, "json.a[0]", "unexpected"),
        ({"path": "/", "headers": {"Connection": "x"}}, "headers.Connection", "can't be set"),
        ({"path": "/", "file": "../x"}, "file", "below the stand-in's directory"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    route: dict[str, object], field: str, what: str, tmp_path: Path
) -> None:
    """Each of a route's fields; nothing of a template is run."""
    texts = [str(fault) for fault in http.check({"routes": [route]}, tmp_path)]
    assert any(text.startswith(f"routes[0].{field}") and what in text for text in texts), texts


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}", "{{ query.__class__.__init__.__globals__ }}",
        "{{ random._random }}", "{{ json.append(1) }}", "{{ body.format.__self__ }}",
        "{{ cycler }}{{ self._TemplateReference__context }}",
    ],
)  # fmt: skip
def test_a_template_reaches_no_python(text: str) -> None:
    """What leads out of the sandbox is empty or an error."""
    route = {"path": "/", "body": text}
    if http.check({"routes": [route]}, None):
        return
    reply = site_of(route).get("/")
    assert (reply.status, reply.text) == (200, "") or reply.status == 500


@pytest.mark.parametrize("text", ["{{ 9 ** 9 ** 9 }}", "{{ 'x' | center(9 ** 9 ** 9) }}"])
def test_a_check_works_nothing_out(text: str) -> None:
    """A policy is checked outside of the jail: what would never end there does no harm."""
    assert http.check({"routes": [{"path": "/", "body": text}]}, None) == ()


@given(
    st.text(),
    st.binary(max_size=200),
    st.sampled_from(["GET", "POST", "DELETE", "PUT"]),
    st.text(max_size=60),
)
def test_any_request_is_answered(path: str, body: bytes, method: str, cookie: str) -> None:
    """No request makes it fail: each is answered with a status an ordinary server gives."""
    kept = cookie.encode("utf-8", "replace").decode("latin-1").replace("\n", "").replace("\r", "")
    posted = ["{{ json }}", "{{ body }}", "{{ path.a }}"]
    rest = "{{ path.r }}{{ json.a[0].b }}{{ form.x }}{{ cookie.c }}{{ header.h }}"
    app = site_of(
        {"path": "/{a}", "method": "POST", "headers": {"x-k": "{{ json.k }}"}, "json": posted},
        {"path": "/{r...}", "body": rest, "type": "text/html"},
        c=kept,
    )
    reply = app.ask(method, "/" + quote(path, safe="/?=&", errors="replace"), body=body)
    assert reply.status in (200, 404, 500)


def test_only_its_login_opens_a_decoys_admin_page() -> None:
    """A wrong, partial or missing login, or an invented session, shows no row."""
    spec = DecoySpec(id="crm", kind=DecoyKind.HTTP, place="admin.example", count=3)
    minted = mint_service(b"k" * 32, "range", spec)
    page, login = Client(http.make(context(minted.settings))), minted.login
    assert login is not None

    def sign_in(body: str) -> bool:
        kind = {"content-type": "application/x-www-form-urlencoded"}
        return "<td>" in page.ask("POST", "/login", body=body, headers=kind).text

    for wrong in ("username=admin&password=x", "username=admin", f"password={login.password}", ""):
        assert not sign_in(wrong)
    for visitor in (page, Client(page.app, cookies={"sid": "0" * 32})):
        for path in ("/", "/login", "/customers"):
            assert "<form" in visitor.get(path).text
            assert "<td>" not in visitor.get(path).text
        assert not visitor.get("/customers.csv").text
    assert sign_in(f"username=admin&password={quote(login.password)}")
    cards = [value.text for value in minted.values if value.id.startswith("crm/card")]
    for path in ("/customers", "/customers.csv"):
        assert all(card in page.get(path).text for card in cards), path
    assert "<td>" not in Client(page.app).get("/customers").text

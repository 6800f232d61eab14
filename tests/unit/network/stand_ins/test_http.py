"""The stand-in `http`: routes and files do what the author wrote, and no more, whatever
a guest sends."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from tests.fakes.asgi import Client, context

from belljar.errors import PolicyError
from belljar.network.stand_ins import http, make

SITE = """\
static: {/assets: assets}
routes:
  - path: /
    body: "<h1>Hello {{ query.who | default(\\"you\\") }}</h1>"
  - path: /raw
    type: text/html
    body: "{{ query.who | safe }}"
  - path: /items
    json: {items: [{name: lamp}], wanted: "{{ query.n }}", at: "{{ now }}"}
  - path: /items
    method: POST
    status: 201
    headers: {x-added: "{{ json.name }}", set-cookie: "seen=1"}
    json: {id: "{{ random.hex(4) }}", all: "{{ json }}"}
  - path: /cart
    method: POST
    body: "{% for each in json.items %}{{ each.name }} {% endfor %}"
  - path: /open
    body: "{% if query.password == cookie.password %}open{% endif %}"
  - path: /times
    json: "{{ query.text * 9 }}"
  - path: /method
    json: "{{ body.upper }}"
  - path: /login
    redirect: "/account?next={{ url | urlencode }}"
  - path: /page/{name}
    template: page.html
  - path: /js
    type: application/javascript
    body: 'const all = {{ query.q | tojson }};'
  - path: /files/{rest...}
    body: "{{ path.rest }}"
  - path: /one
    file: assets/a.txt
"""

SHOP = YAML(typ="safe", pure=True).load(SITE)


@pytest.fixture
def shop(tmp_path: Path) -> Client:
    """The site above, over files."""
    (tmp_path / "assets/sub").mkdir(parents=True)
    (tmp_path / "assets/a.txt").write_text("0123456789")
    (tmp_path / "assets/sub/index.html").write_text("<p>sub")
    (tmp_path / "secret").write_text("no")
    (tmp_path / "assets/link").symlink_to("../secret")
    (tmp_path / "page.html").write_text(
        "<p>{{ path.name }}</p><a href='/?q={{ path.name | urlencode }}'>"
    )
    assert http.check(SHOP, tmp_path) == ()
    return Client(make("http", context(SHOP, tmp_path)))


def test_text_of_a_request_is_escaped_in_markup(shop: Client) -> None:
    """`safe` is the author's own choice; for other places there are Jinja's filters."""
    assert shop.get("/?who=%3Cb%3E").text == "<h1>Hello &lt;b&gt;</h1>"
    assert shop.get("/").text == "<h1>Hello you</h1>"
    assert shop.get("/raw?who=%3Cb%3E").text == "<b>"
    assert shop.get("/page/a%22b").text == "<p>a&#34;b</p><a href='/?q=a%22b'>"
    assert shop.get("/js?q=%22%3C/script%3E").text == (r'const all = "\"\u003c/script\u003e";')


def test_a_text_that_is_one_expression_keeps_its_type(shop: Client) -> None:
    """Also below a list or a mapping; what isn't there is null."""
    added = shop.ask("POST", "/items", json={"name": "<i>", "n": [1, {"a": None}]})
    fields = (added.status, added.header("x-added"), added.header("set-cookie"))
    assert fields == (201, "<i>", "seen=1")
    assert added.json["all"] == {"name": "<i>", "n": [1, {"a": None}]}
    assert len(added.json["id"]) == 8
    found = {"items": [{"name": "lamp"}], "wanted": None, "at": "2027-01-15T08:00:00Z"}
    assert shop.get("/items").json == found


def test_a_field_comes_before_a_method_and_nothing_equals_nothing(shop: Client) -> None:
    """`items` is the request's own; two absent passwords are not the same one."""
    assert shop.ask("POST", "/cart", json={"items": [{"name": "lamp"}]}).text == "lamp "
    assert shop.get("/open").text == ""
    assert shop.get("/open?password=a", cookie="password=a").text == "open"


def test_what_can_not_be_answered_is_an_error_of_the_server(shop: Client) -> None:
    """A text is not multiplied, and a method is no JSON."""
    assert [shop.get(path).status for path in ("/times?text=abc", "/method")] == [500, 500]


def test_a_segment_is_split_before_it_is_decoded(shop: Client) -> None:
    """`%2F` belongs to its segment; the rest takes all segments."""
    assert shop.get("/files/a%2Fb/c").text == "a/b/c"
    assert shop.get("/page/a/b").status == 404
    assert shop.get("/files/").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "link",
        "../secret",
        "..%2fsecret",
        "sub/../../secret",
        "%2e%2e/secret",
        "/etc/passwd",
        "a.txt%00",
        "a.txt/",
        "sub/../a.txt",
    ],
)
def test_static_files_never_lead_out(shop: Client, path: str) -> None:
    """Links, `..` in any spelling and absolute paths find nothing."""
    assert shop.get(f"/assets/{path}").status == 404


def test_static_files_have_bounds_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As deep as a policy's directory may be, and no more files than are documented."""
    deep = tmp_path / "assets" / "/".join(["d"] * 30)
    deep.mkdir(parents=True)
    (deep / "a.txt").write_text("below")
    (tmp_path / "assets/.well-known").write_text("shown")
    settings = {"static": {"/assets": "assets"}, "routes": [{"path": "/"}]}
    site = Client(make("http", context(settings, tmp_path)))
    assert site.get(f"/assets/{'d/' * 30}a.txt").text == "below"
    assert site.get("/assets/.well-known").text == "shown"
    monkeypatch.setattr(http, "MAX_STATIC_FILES", 1)
    with pytest.raises(PolicyError, match="more than 1 files"):
        make("http", context(settings, tmp_path))


def test_a_file_may_be_larger_than_a_gateway_s_memory(tmp_path: Path) -> None:
    """It is served in pieces, so neither the check nor the gateway's start reads it whole."""
    with (tmp_path / "disk.img").open("wb") as file:
        file.truncate(1 << 40)
    settings = {"routes": [{"path": "/", "file": "disk.img"}]}
    assert http.check(settings, tmp_path) == ()
    assert Client(make("http", context(settings, tmp_path))).ask("HEAD", "/").status == 200


def test_what_is_rendered_has_a_bound() -> None:
    """A page that would grow above the bound is a 500."""
    body = "{{ body }}" * 10
    app = Client(
        http.make(
            context(
                {"routes": [{"path": "/", "method": "POST", "body": body, "type": "text/plain"}]}
            )
        )
    )
    assert app.ask("POST", "/", body=b"x" * 1_000_000).status == 500


def test_a_guest_cannot_split_headers() -> None:
    """Line breaks and other controls never reach a field."""
    route = {"path": "/", "headers": {"x-q": "{{ query.q }}"}, "redirect": "{{ query.q }}"}
    reply = Client(http.make(context({"routes": [route]}))).get("/?q=a%0d%0aset-cookie:%20x=1;%00b")
    assert reply.header("x-q") == reply.header("location") == "aset-cookie: x=1;b"
    assert not reply.header("set-cookie")


@pytest.mark.parametrize(
    ("route", "field", "what"),
    [
        ({"path": "items"}, "path", "begins with `/`"),
        ({"path": "/{a}/{a}"}, "path", "two parameters"),
        ({"path": "/{a...}/b"}, "path", "at the end"),
        ({"path": "/", "method": "GOT"}, "method", "is none of"),
        ({"path": "/", "bdy": "x"}, "bdy", "did you mean `body`"),
        ({"path": "/", "body": "{{ x"}, "body", "unexpected end"),
        ({"path": "/", "body": "{{ state.x }}"}, "body", "there is no `state`"),
        ({"path": "/", "body": "{{ body | shout }}"}, "body", "no filter `shout`"),
        ({"path": "/", "body": "{% include 'x' %}"}, "body", "can't include"),
        ({"path": "/", "body": "{% for i in range(9) %}x{% endfor %}"}, "body", "no `range`"),
        ({"path": "/", "json": {"a": ["{{"]}}, "json.a[0]", "unexpected"),
        ({"path": "/", "when": "form.user"}, "when", "there is no such field"),
        ({"path": "/", "body": "a", "file": "b"}, "file", "one of"),
        ({"path": "/", "status": 199}, "status", "no status"),
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
        "{{ ''.__class__.__mro__ }}",
        "{{ query.__class__.__init__.__globals__ }}",
        "{{ random._random }}",
        "{{ json.append(1) }}",
        "{{ body.format.__self__ }}",
        "{{ cycler }}{{ self._TemplateReference__context }}",
    ],
)
def test_a_template_reaches_no_python(text: str) -> None:
    """What leads out of the sandbox is empty or an error."""
    settings = {"routes": [{"path": "/", "body": text}]}
    if http.check(settings, None):
        return
    reply = Client(http.make(context(settings))).get("/")
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
    """No request makes the stand-in fail: each is answered with a status an ordinary server
    gives."""
    routes = [
        {
            "path": "/{a}",
            "method": "POST",
            "headers": {"x-k": "{{ json.k }}"},
            "json": ["{{ json }}", "{{ body }}", "{{ path.a }}"],
        },
        {
            "path": "/{r...}",
            "body": "{{ path.r }}{{ json.a[0].b }}{{ form.x }}{{ cookie.c }}{{ header.h }}",
            "type": "text/html",
        },
    ]
    app = Client(
        http.make(context({"routes": routes})),
        cookies={
            "c": cookie.encode("utf-8", "replace")
            .decode("latin-1")
            .replace("\n", "")
            .replace("\r", "")
        },
    )
    from urllib.parse import quote

    reply = app.ask(method, "/" + quote(path, safe="/?=&", errors="replace"), body=body)
    assert reply.status in (200, 404, 500)

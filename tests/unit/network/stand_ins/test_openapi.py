"""The stand-in `openapi`: requests are held to the document, and every answer fits the document's
own schema."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from tests.fakes.asgi import Client, context

from belljar.errors import PolicyError
from belljar.network.stand_ins import openapi
from belljar.network.stand_ins.operations import load

DOCUMENTS = Path(__file__).parent / "documents"
KEY = {"x-key": "k"}


@pytest.fixture(scope="module")
def pets() -> Client:
    """A 3.0 document in YAML, with a base path and a key."""
    return Client(openapi.make(context({"document": "pets.yaml"}, DOCUMENTS)))


@pytest.fixture(scope="module")
def billing() -> Client:
    """A 3.1 document in JSON."""
    return Client(openapi.make(context({"document": "billing.json"}, DOCUMENTS)))


@pytest.mark.parametrize("name", ["pets.yaml", "billing.json"])
def test_every_answer_fits_its_schema(name: str) -> None:
    """Each operation's made-up answer is valid by jsonschema alone, read with formats checked, from
    the document as JSON Schema."""
    assert openapi.check({"document": name}, DOCUMENTS) == ()
    api = load({"document": name}, DOCUMENTS)
    server = openapi._OpenApi(api)
    seen = 0
    for operation in api.operations:
        at, described = api.at(operation.answer or ())
        for media, body in server.contents(at, described).items():
            if media.endswith("json"):
                schema = {
                    "$ref": (
                        "#"
                        + "".join(
                            f"/{str(p).replace('~', '~0').replace('/', '~1')}"
                            for p in (*at, "content", media, "schema")
                        )
                    ),
                    **server.given.root,
                }
                from belljar.network.stand_ins.web import parse_json

                Draft202012Validator(
                    schema, format_checker=Draft202012Validator.FORMAT_CHECKER
                ).validate(parse_json(body))
                seen += 1
    assert seen >= 3


def test_the_answer_is_the_lowest_2xx(pets: Client) -> None:
    """201 stands before 202; `2XX` is 200; an answer without content is bare; a writeOnly property
    is never shown."""
    made = pets.ask("POST", "/v2/pets", json={"name": "Rex", "kind": "dog"}, headers=KEY)
    assert made.status == 201
    assert "secret" not in made.json
    assert made.json["chip"][3] == "-"
    assert pets.ask("DELETE", "/v2/pets/7", headers=KEY).status == 204
    assert pets.ask("GET", "/v2/pets/mine", headers=KEY).json["tree"]["left"]["value"]


def test_an_authors_example_goes_first(pets: Client) -> None:
    """What the author wrote is given as it is, by the content type that was asked for."""
    assert pets.ask("GET", "/v2/pets/7", headers=KEY).json == {
        "id": 7,
        "name": "Rex",
        "kind": "dog",
        "barks": True,
    }
    assert (
        pets.ask("GET", "/v2/pets/7", headers={**KEY, "accept": "text/csv"}).text
        == "id,name\n7,Rex\n"
    )
    assert (
        pets.ask(
            "GET", "/v2/pets/7", headers={**KEY, "accept": "text/*;q=0.4, application/json;q=0.3"}
        ).header("content-type")
        == "text/csv"
    )
    assert pets.ask("GET", "/v2/pets/7", headers={**KEY, "accept": "image/png"}).status == 406


def test_answers_are_the_same_each_time(billing: Client) -> None:
    """Two ranges, and two requests, get the same bytes."""
    other = Client(openapi.make(context({"document": "billing.json"}, DOCUMENTS, seed=b"other")))
    assert billing.get("/odds").body == billing.get("/odds").body == other.get("/odds").body


@pytest.mark.parametrize(
    ("method", "url", "status", "word"),
    [
        ("GET", "/v2/pets?limit=0", 400, "limit"),
        ("GET", "/v2/pets?limit=ten", 400, "limit"),
        ("GET", "/v2/pets?tags=red,green", 400, "tags"),
        ("GET", "/v2/pets/x", 400, "id"),
        ("POST", "/v2/pets", 400, "body"),
        ("PUT", "/v2/pets", 405, "Method"),
        ("GET", "/pets", 404, "Not Found"),
        ("GET", "/v2/pets/7/x", 404, "Not Found"),
    ],
)
def test_wrong_requests_are_refused(
    pets: Client, method: str, url: str, status: int, word: str
) -> None:
    """The status says what is wrong, and the message names it."""
    reply = pets.ask(method, url, headers=KEY)
    assert (reply.status, word in reply.json["message"]) == (status, True)


def test_right_parameters_pass(pets: Client) -> None:
    """Numbers and lists are read out of text."""
    reply = pets.get("/v2/pets?limit=100&tags=red&tags=blue")
    assert (reply.status, len(reply.json), reply.header("x-total")) == (200, 2, "7")
    assert pets.get("/v2/pets?tags=red").status == 200


def test_credentials_must_be_there(pets: Client) -> None:
    """Without the key 401; an operation that needs none has none; `auth: false` asks for none."""
    assert pets.get("/v2/pets/7").status == 401
    assert (
        Client(openapi.make(context({"document": "pets.yaml", "auth": False}, DOCUMENTS)))
        .get("/v2/pets/7")
        .status
        == 200
    )


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b'{"name": "Rex", "kind": "dog"}', 201),
        ("application/json", b'{"name": "Rex"}', 400),
        ("application/json", b'{"name": "R", "kind": "dog"}', 400),
        ("application/json", b"{", 400),
        ("application/json; charset=utf-8", b'{"name": "Rex", "kind": "dog", "barks": null}', 201),
        ("application/x-www-form-urlencoded", b"name=Rex&age=3", 201),
        ("application/x-www-form-urlencoded", b"name=Rex&age=old", 400),
        ("text/plain", b"Rex", 415),
    ],
)
def test_bodies_are_checked(pets: Client, kind: str, body: bytes, status: int) -> None:
    """A body fits its schema, readOnly properties not demanded, or is refused."""
    assert (
        pets.ask("POST", "/v2/pets", body=body, headers={**KEY, "content-type": kind}).status
        == status
    )


def test_the_documented_error_is_used(billing: Client) -> None:
    """Where the document describes the error, it has that shape and status, and reports what is
    wrong."""
    reply = billing.ask("POST", "/events", json={"paid": True, "void": True})
    assert reply.status == 422
    assert "request body" in reply.json["detail"]
    assert (
        billing.ask("POST", "/events", json={"void": True}).header("content-type")
        == "application/vnd.event+json"
    )


def test_a_segment_may_have_two_parameters(billing: Client) -> None:
    """`{number}.{format}` is taken apart."""
    assert billing.get("/invoices/12.json").status == 200
    assert billing.get("/invoices/12.pdf").status == 400
    assert billing.get("/invoices/x.json").status == 400


def giving(schema: str) -> str:
    """A document with one answer of this schema."""
    return (
        "openapi: 3.1.0\npaths: {/: {get: {responses: {'200': {content: {application/json:"
        " {schema: " + schema + "}}}}}}}"
    )


ENDLESS = (
    "\ncomponents: {schemas: {A: {type: object, required: [a], properties: {a: {$ref:"
    " '#/components/schemas/A'}}}}}"
)
MISTAKES = {
    "swagger: '2.0'": "1:1: openapi: an OpenAPI document of version 3.0 or 3.1 is needed, this is Swagger 2.0",
    "openapi: 3.0.0\npaths: {}": "2:8: paths: there are no paths",
    "openapi: 3.0.0\npaths:\n  x: {}": "3:3: paths.x: a path begins with `/`",
    "openapi: 3.0.0\npaths:\n  /: {get: {}}": "3:12: paths./.get.responses: an operation has at least one response",
    "openapi: 3.0.0\npaths:\n  /: {get: {responses: {'99': {description: x}}}}": "3:25: paths./.get.responses.99: `99` is no status",
    "openapi: 3.0.0\npaths:\n  /:\n    $ref: other.yaml": "4:11: paths./.$ref: `other.yaml`: only references into the same document",
    "openapi: 3.0.0\npaths:\n  /:\n    $ref: '#/x'": "4:11: paths./.$ref: `#/x` leads nowhere",
    "openapi: 3.1.0\nx: {$ref: '#/x'}\npaths: {/: {}}": "2:11: x.$ref: `#/x` leads nowhere, or round in a circle",
    "openapi: 3.1.0\npaths: {/: {}}\ncomponents: {schemas: {A: {type: strng}}}": "3:27: components.schemas.A: not a schema at type",
    "openapi: 3.1.0\npaths: {/: {}}\ncomponents: {schemas: {A: {patternProperties: {'(ab|a|b)*c': {}}}}}": "3:48: components.schemas.A.patternProperties.(ab|a|b)*c: ",
    "openapi: 3.1.0\npaths: {/: {}}\ncomponents: {schemas: {A: {pattern: '(a+)+$'}}}": "can take for ever",
    "openapi: 3.1.0\npaths: {/: {}}\ncomponents: {schemas: {A: {pattern: '('}}}": "can't be read",
    "openapi: 3.1.0\npaths: {/: {get: []}}": "2:18: paths./.get: [] is not of type 'object'",
    "openapi: 3.1.0\npaths: {/: {get: {parameters: [{name: x}], responses: {'200': {}}}}}": "a parameter has a `name`",
    giving("{type: object, required: [a], properties: {a: {$ref: '#/components/schemas/A'}}}") + ENDLESS: "from the schema: it demands itself without end",
    giving("{type: integer, minimum: 3, maximum: 2}"): "no valid example",
}  # fmt: skip


@pytest.mark.parametrize("text", MISTAKES)
def test_every_mistake_is_reported_with_its_place(text: str, tmp_path: Path) -> None:
    """A fault of a document is reported with file, line and column."""
    (tmp_path / "a.yaml").write_text(text)
    problems = [str(fault) for fault in openapi.check({"document": "a.yaml"}, tmp_path)]
    assert any(MISTAKES[text] in problem for problem in problems), problems
    assert all(problem.startswith("a.yaml:") for problem in problems)


def test_make_refuses_what_cannot_be_read(tmp_path: Path) -> None:
    """A document with mistakes makes no stand-in."""
    with pytest.raises(PolicyError):
        openapi.make(context({"document": "none.yaml"}, tmp_path))


def test_remote_references_are_never_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No socket is made for a document with a reference to another host."""
    import socket

    def refuse(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a socket was made")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    shutil.copy(DOCUMENTS / "pets.yaml", tmp_path / "pets.yaml")
    text = (
        (tmp_path / "pets.yaml")
        .read_text()
        .replace('"#/components/schemas/Family"', '"http://192.0.2.1/x.json"')
    )
    (tmp_path / "pets.yaml").write_text(text)
    assert any(
        "only references into the same document" in fault.message
        for fault in openapi.check({"document": "pets.yaml"}, tmp_path)
    )


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "items",
                    "$ref",
                    "enum",
                    "required",
                    "a",
                    "200",
                    "get",
                    "content",
                    "schema",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.binary(max_size=300),
    st.sampled_from(["application/json", "application/x-www-form-urlencoded", "", "x/y"]),
    st.text(max_size=30),
)
def test_any_request_is_answered(body: bytes, kind: str, query: str) -> None:
    """Whatever is sent gets a status of HTTP's."""
    from urllib.parse import quote

    reply = ANY.ask(
        "POST",
        f"/v2/pets?limit={quote(query, errors='replace')}",
        body=body,
        headers={**KEY, "content-type": kind},
    )
    assert reply.status in (201, 400, 415)


ANY = Client(openapi.make(context({"document": "pets.yaml"}, DOCUMENTS)))


@given(JSON)
def test_any_document_is_judged(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    """A document of any shape gets an answer, never an exception."""
    from belljar.network.stand_ins.web import compact

    folder = tmp_path_factory.mktemp("documents")
    document = {
        "openapi": "3.1.0",
        "paths": {
            "/": {
                "get": {"responses": {"200": {"content": {"application/json": {"schema": value}}}}}
            }
        },
        "components": value,
    }
    (folder / "a.json").write_text(compact(document), errors="replace")
    openapi.check({"document": "a.json"}, folder)


def test_checking_ends_where_schemas_refer_to_each_other_too_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is the whole document's: no number of operations, each within its own, makes
    checking long."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/a"}}}
    operation = {"get": {"responses": {"200": {"description": "fine", "content": content}}}}
    document = {
        "openapi": "3.1.0",
        "paths": {f"/{at}": operation for at in range(3)},
        "components": {"schemas": {"a": {"type": "string"}}},
    }
    (tmp_path / "a.json").write_text(json.dumps(document))
    assert openapi.check({"document": "a.json"}, tmp_path) == ()
    monkeypatch.setattr(openapi, "MAX_SPENT", 1)
    (fault,) = openapi.check({"document": "a.json"}, tmp_path)
    assert fault.path == ("paths",)
    assert "too often" in fault.message

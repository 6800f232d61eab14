"""What an OpenAPI document offers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from belljar.network.stand_ins.documents import Document
from belljar.network.stand_ins.operations import MAX_URL_CHARS, Api, arguments, choose, load

DOCUMENTS = Path(__file__).parent / "documents"


@pytest.mark.parametrize(
    ("codes", "chosen"),
    [
        ("404 204 201", (201, "201")),
        ("404 2XX", (200, "2XX")),
        ("404 default", (200, "default")),
        ("404 302", (302, "302")),
        ("500 404", (404, "404")),
        ("3XX 404", (300, "3XX")),
        ("5XX", (200, "5XX")),
    ],
)
def test_the_lowest_success_is_chosen(codes: str, chosen: tuple[int, str]) -> None:
    """2xx by number, then `2XX`, `default`, 3xx, and then the lowest there is."""
    assert choose(dict.fromkeys(codes.split(), ())) == chosen


def test_a_concrete_path_goes_first() -> None:
    """`/pets/mine` stands before `/pets/{id}`; the server's path comes before both."""
    api = load({"document": "pets.yaml"}, DOCUMENTS)
    assert api.document.problems == []
    paths = [
        operation.path
        for operation in api.operations
        if arguments(operation, "/v2/pets/mine") is not None
    ]
    assert paths[0] == "/pets/mine"
    assert not [
        operation for operation in api.operations if arguments(operation, "/pets/mine") is not None
    ]


def test_arguments_are_decoded() -> None:
    """After the path was taken apart."""
    api = load({"document": "billing.json"}, DOCUMENTS)
    found = [
        names
        for operation in api.operations
        if (names := arguments(operation, "/invoices/a%2Fb.c.json")) is not None
    ]
    assert found == [{"number": "a/b", "format": "c.json"}]


def test_references_are_followed_but_not_round() -> None:
    """One to another, and a circle is a `KeyError`."""
    document = {"a": {"$ref": "#/b"}, "b": {"$ref": "#/c"}, "c": {"x": 1}, "d": {"$ref": "#/d"}}
    api = Api(document=Document(source="", value=document))
    assert api.at(("a",)) == (("c",), {"x": 1})
    with pytest.raises(KeyError):
        api.at(("d",))


@pytest.mark.parametrize("text", ["." * 60_000, "a." * 30_000, "a" * 60_000])
def test_no_path_is_slow_to_take_apart(text: str) -> None:
    """A segment with several parameters has a bound: a long one is simply none of its own."""
    api = load({"document": "billing.json"}, DOCUMENTS)
    assert [arguments(operation, f"/invoices/{text}") for operation in api.operations] == [
        None
    ] * len(api.operations)


def test_a_servers_variables_are_put_in_once(tmp_path: Path) -> None:
    """A default that names others twice each would be a path of any length: what it names stays as
    it is written, and no path is longer than the bound."""
    variables = {
        "a": {"default": "v1"},
        "b": {"default": "{c}{c}"},
        "c": {"default": "{b}{b}"},
        "d": {"default": "x" * 9000},
    }
    for url, path in (
        ("/{a}/{none}", "/v1/{none}/p"),
        ("/{b}", "/{c}{c}/p"),
        ("/{d}", "/" + "x" * (MAX_URL_CHARS - 1) + "/p"),
    ):
        document = {
            "openapi": "3.1.0",
            "servers": [{"url": url, "variables": variables}],
            "paths": {"/p": {"get": {"responses": {"200": {"description": "fine"}}}}},
        }
        (tmp_path / "a.json").write_text(json.dumps(document))
        api = load({"document": "a.json"}, tmp_path)
        assert api.document.problems == []
        assert arguments(api.operations[0], path) is not None

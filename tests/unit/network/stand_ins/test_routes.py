"""Patterns of paths and conditions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.asgi import context

from belljar.network.stand_ins.routes import Condition, Pattern, Route, escape_for, parse_pattern
from belljar.network.stand_ins.templates import View, parse_reference, parse_template
from belljar.network.stand_ins.web import Request


@pytest.mark.parametrize(
    "text", ["x", "/a?b", "/{a}{b}", "/{a...}/b", "/{a}/{a}", "/{1}", "/a{b}", "/ a", "/{}"]
)
def test_wrong_patterns(text: str) -> None:
    """What can't be meant is refused."""
    with pytest.raises(ValueError, match=r"."):
        parse_pattern(text)


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=4))
def test_a_parameter_takes_any_segment(parts: list[str]) -> None:
    """Every segment that can be sent comes back as it was."""
    from urllib.parse import quote

    path = "".join("/" + quote(part, safe="", errors="replace") for part in parts)
    pattern = parse_pattern("".join(f"/{{p{n}}}" for n in range(len(parts))))
    found = pattern.match(path)
    assert found is not None
    assert list(found.values()) == [part.encode("utf-8", "replace").decode() for part in parts]
    assert parse_pattern("/{all...}").match(path) == {"all": "/".join(found.values())}


def test_text_must_be_the_same() -> None:
    """Text is compared decoded, trailing slashes count, shapes leave names out."""
    assert parse_pattern("/a%20b").match("/%61%20b") == {}
    assert parse_pattern("/a").match("/a/") is None
    assert parse_pattern("/").match("/") == {}
    assert (
        parse_pattern("/x/{a}").shape
        == parse_pattern("/x/{b}").shape
        != parse_pattern("/x/{b...}").shape
    )


def see(query: str, body: bytes) -> View:
    """A view of a request."""
    made = context()
    return View(
        request=Request(method="GET", path="/", raw_path="/", query_string=query, body=body),
        path={},
        state={"none": None, "tags": ["a"]},
        session={},
        clock=made.clock,
        random=made.random,
    )


@pytest.mark.parametrize(
    ("reference", "operator", "expected", "holds"),
    [
        ("query.q", "equals", 2, True),
        ("query.q", "equals", "2", True),
        ("json.n", "equals", 1, True),
        ("json.n", "equals", True, False),
        ("json.n", "equals", 1.0, False),
        ("json.s", "starts", "ab", True),
        ("json.s", "contains", "bc", True),
        ("json.n", "contains", "1", False),
        ("state.tags", "contains", "a", True),
        ("query.none", "exists", False, True),
        ("query.q", "exists", False, False),
        ("query.none", "equals", parse_template("{{ json.none }}"), False),
        ("json.none", "equals", None, True),
    ],
)
def test_conditions(reference: str, operator: str, expected: object, holds: bool) -> None:
    """JSON is compared with its type, text of a request as text, and nothing never equals nothing
    by a template."""
    condition = Condition(
        reference=parse_reference(reference),
        operator=operator,  # type: ignore[arg-type]
        expected=expected,
    )
    assert condition.holds(see("q=2", b'{"n": 1, "s": "abc"}')) is holds


def test_the_place_decides_the_escape() -> None:
    """By content type; HEAD goes where GET goes."""
    kinds = [
        "text/html; charset=x",
        "image/svg+xml",
        "application/problem+json",
        "text/javascript",
        "application/x-www-form-urlencoded",
        "text/plain",
    ]
    assert [escape_for(kind) for kind in kinds] == ["html", "html", "json", "json", "url", "none"]
    assert Route(pattern=Pattern(())).takes("HEAD")

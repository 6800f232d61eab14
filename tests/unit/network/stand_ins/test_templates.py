"""Templates: what they find, how it is escaped, and that nothing else can be written in them."""

from __future__ import annotations

import html
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.asgi import context

from belljar.network.stand_ins.templates import (
    Escape,
    TemplateError,
    View,
    parse_reference,
    parse_template,
    render,
    render_value,
)
from belljar.network.stand_ins.web import Request


def view(query: str = "", body: bytes = b"", **state: object) -> View:
    """A request's view."""
    made = context()
    request = Request(
        method="POST",
        path="/a",
        raw_path="/a",
        query_string=query,
        headers=(("host", "h"), ("x-a", "1")),
        body=body,
    )
    return View(
        request=request,
        path={"id": "7"},
        state=state,
        session={},
        clock=made.clock,
        random=made.random,
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{{ path.id }}|{{ query.q }}|{{ header.X-A }}|{{ method }}", "7|1|1|POST"),
        ('{{ json.a[1]["b c"] }}', "deep"),
        ("{{ json.a[-1] }}", '{"b c":"deep"}'),
        ("{{ json.none.of.it }}{{ json.a[9] }}{{ json.a.x }}", ""),
        ('{{ json.none | default("x\\n") }}{{ json.none | default(3) }}', "x\n3"),
        ("{{ json.a | length }}{{ json.none | length }}", "20"),
        ("{{ state.users[json.who].name }}", "Ann"),
        (
            "{{ now }} {{ now.unix }} {{ now.date }} {{ now.http }}",
            "2027-01-15T08:00:00Z 1800000000 2027-01-15 Fri, 15 Jan 2027 08:00:00 GMT",
        ),
        ("{{ random.int(4, 4) }}", "4"),
        ("a } b {c} }}", "a } b {c} }}"),
        ("{{body|length}}", "39"),
    ],
)
def test_what_a_template_finds(text: str, shown: str) -> None:
    """References walk what is there; what isn't there is empty."""
    seen = view(
        "q=1",
        b'{"a": [1, {"b c": "deep"}], "who": "u1"}'.replace(b": [1", b":[1"),
        users={"u1": {"name": "Ann"}},
    )
    assert render(parse_template(text), seen, "none") == shown


@pytest.mark.parametrize(
    "text",
    [
        "{{",
        "{{ }}",
        "{{ os }}",
        "{{ json.__class__ }}{{ state.x() }}",
        "{{ query }}",
        "{{ query.a.b }}",
        "{{ method.x }}",
        "{{ random.hex }}",
        "{{ random.hex(0) }}",
        "{{ random.hex(999) }}",
        "{{ random.int(2, 1) }}",
        "{{ now.year }}",
        "{{ json.a | upper }}",
        "{{ json.a | default }}",
        "{{ json.a | default(json.b) }}",
        "{{ json.a json.b }}",
        "{{ json[ }}",
        "{{ json[state[json[state[json.a]]]] }}",
        "{{ json" + ".a" * 17 + " }}",
        '{{ json["\\x"] }}',
        "{{ 1 + 1 }}",
    ],
)
def test_nothing_else_can_be_written(text: str) -> None:
    """Calls, operators, unknown roots and filters are mistakes with a place."""
    with pytest.raises(TemplateError) as caught:
        parse_template(text)
    assert 0 <= caught.value.offset <= len(text)


def test_a_lone_expression_keeps_its_type() -> None:
    """As a value, one expression gives what it finds; more than one gives text."""
    assert render_value(
        {"a": [parse_template("{{ state.n }}"), parse_template("n={{ state.n }}")]}, view(n=[1])
    ) == {"a": [[1], "n=[1]"]}


@given(st.text())
def test_text_is_escaped_for_its_place(text: str) -> None:
    """HTML has no markup of a guest's, JSON stays the same text and closes no script, a URL stays
    one part."""
    template = parse_template("{{ state.t }}")
    shown: dict[Escape, str] = {
        escape: render(template, view(t=text), escape) for escape in ("html", "json")
    }
    assert html.unescape(shown["html"]) == html.unescape(html.escape(text))
    assert not set("<>\"'") & set(shown["html"])
    assert json.loads(f'"{shown["json"]}"') == text
    assert "<" not in shown["json"]
    if text.isascii():
        assert not set("/?#&<>\"' ") & set(render(template, view(t=text), "url"))


@given(st.text(alphabet="{}|.[]()\"' abjsontequry0123default-", max_size=60))
def test_any_text_is_a_template_or_a_mistake(text: str) -> None:
    """Reading never fails otherwise, and what is read can be rendered."""
    try:
        template = parse_template(text)
    except TemplateError:
        return
    assert isinstance(render(template, view(), "html"), str)


def test_a_reference_alone() -> None:
    """Something behind it is a mistake."""
    assert parse_reference("state.a[0]").steps == ("a", 0)
    with pytest.raises(TemplateError):
        parse_reference("state.a }}")

"""The HTTP basics of stand-ins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.web import Client, context, request_to

from belljar.network.stand_ins.web import HttpAnswer, HttpService, Request, header_text, parse_json


@pytest.mark.parametrize(
    "text",
    ["NaN", "[Infinity]", "[" * 100_000, "[" * 129 + "]" * 129, '{"a":', "", "1" * 5000],
    ids=lambda text: text[:9],
)
def test_what_is_not_json(text: str) -> None:
    """No NaN, no endless nesting, no absurd number: `ValueError`, and None as a body."""
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
    assert Request(method="POST", path="/", raw_path="/", body=text.encode()).json is None


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1"])
def test_json_is_utf_8(encoding: str) -> None:
    """Two readers of the same bytes take them for the same: no other encoding is guessed."""
    assert parse_json('{"a": "é"}'.encode()) == {"a": "é"}
    with pytest.raises(ValueError, match=r"."):
        parse_json('{"a": "é"}'.encode(encoding))


@given(st.text())
def test_header_text_is_one_line_of_latin_1(text: str) -> None:
    """Whatever comes in, no control and no line break comes out."""
    assert all(
        char == "\t" or 0x20 <= ord(char) < 0x7F or 0x80 <= ord(char) <= 0xFF
        for char in header_text(text)
    )


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_make_a_request(path: bytes, value: bytes) -> None:
    """Path and fields of any bytes are read."""
    text = value.decode("latin-1")
    fields = dict.fromkeys(("cookie", "content-type", "host"), text)
    it = request_to("GET", f"/{path.decode('latin-1')}", text, fields, b"")
    assert isinstance((it.query, it.form, it.cookies, it.host, it.url, it.json), tuple)


def test_a_body_beyond_its_bound_is_refused() -> None:
    """By a status, and no stand-in sees it."""

    class Echo(HttpService):
        max_body_bytes = 1000

        async def handle(self, request: Request) -> HttpAnswer:
            return HttpAnswer(body=request.body)

    app = Client(Echo(context()))
    assert app.ask("POST", "/", body=bytes(1000)).body == bytes(1000)
    assert app.ask("POST", "/", body=bytes(1001)).status == 413


def test_the_number_of_values_can_be_bounded() -> None:
    """Each takes memory, however short it is."""
    text = "[" + "{}," * 9 + "0]"
    assert len(parse_json(text, max_commas=19)) == 10
    with pytest.raises(ValueError, match="more than 18"):
        parse_json(text, max_commas=18)

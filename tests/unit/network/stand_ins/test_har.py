"""The stand-in `har`: a recording is replayed, what isn't in it is refused and on record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.web import Client, Recorded, context

from belljar.network.stand_ins import har

HEADERS = {
    "Content-Type": "text/plain",
    "content-encoding": "gzip",
    ":status": "200",
    "Transfer-Encoding": "chunked",
    "Set-Cookie": "a=1\nb=2",
}
SHOP = "http://shop.example/"


def entry(
    method: str,
    url: str,
    text: str | None = "ok",
    *,
    post: str = "",
    status: int = 200,
    **content: object,
) -> dict[str, Any]:
    request: dict[str, Any] = {"method": method, "url": url}
    if post:
        request["postData"] = {"mimeType": "text/plain", "text": post}
    headers = [{"name": name, "value": value} for name, value in HEADERS.items()]
    body = {"size": 2, **({} if text is None else {"text": text}), **content}
    return {"request": request, "response": {"status": status, "headers": headers, "content": body}}


def write(folder: Path, *entries: object) -> dict[str, Any]:
    log = {"log": {"version": "1.2", "entries": list(entries)}}
    (folder / "a.har").write_text(json.dumps(log, indent=1))
    return {"recording": "a.har"}


def client(folder: Path, *entries: object, record: Recorded | None = None) -> Client:
    return Client(har.make(context(write(folder, *entries), folder, record=record)))


def test_exchanges_are_found_by_method_host_path_and_query(tmp_path: Path) -> None:
    """The query's fields may come in any order; all else must be the same."""
    record = Recorded()
    app = client(
        tmp_path,
        entry("GET", "https://shop.example/a%20b?x=1&y=2&x=3"),
        entry("POST", "http://shop.example:80/a", "posted"),
        record=record,
    )
    for found in ("/a%20b?y=2&x=1&x=3", "/a%20b?y=2&x=3&x=1"):
        assert app.get(found).text == "ok"
    assert app.ask("POST", "/a").text == "posted"
    assert record.events == []
    for other in ("/a%20b?y=2&x=1", "/a", "http://other.example/a%20b?x=1&y=2&x=3"):
        assert app.get(other).status == 404
    assert app.ask("PUT", "/x?y").status == 404
    attempt = {"what": "unrecorded", "method": "PUT", "url": "http://shop.example/x?y"}
    assert record.events[-1] == (attempt, ())


NAMES = ["request", "response", "method", "url", "headers", "content", "text", "status", "postData"]
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda i: st.lists(i, max_size=2) | st.dictionaries(st.sampled_from(NAMES), i, max_size=5),
)


@given(JSON)
def test_any_entry_is_judged(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    """An entry of any shape gives sentences, never an exception."""
    folder = tmp_path_factory.mktemp("har")
    har.check(write(folder, value), folder)

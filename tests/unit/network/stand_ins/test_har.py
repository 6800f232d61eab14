"""The stand-in `har`: a recording is replayed, what isn't in it is refused and on record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.asgi import Client, Recorded, context

from belljar.network.stand_ins import har


def entry(
    method: str,
    url: str,
    text: str | None = "ok",
    *,
    post: str | None = None,
    status: int = 200,
    **content: object,
) -> dict[str, Any]:
    """An entry of a recording."""
    request: dict[str, Any] = {"method": method, "url": url}
    if post is not None:
        request["postData"] = {"mimeType": "text/plain", "text": post}
    headers = [
        {"name": "Content-Type", "value": "text/plain"},
        {"name": "content-encoding", "value": "gzip"},
        {"name": ":status", "value": "200"},
        {"name": "Transfer-Encoding", "value": "chunked"},
        {"name": "Set-Cookie", "value": "a=1\nb=2"},
    ]
    body = {"size": 2, **({} if text is None else {"text": text}), **content}
    return {"request": request, "response": {"status": status, "headers": headers, "content": body}}


def write(folder: Path, *entries: object) -> dict[str, Any]:
    """A recording and the settings that name it."""
    (folder / "a.har").write_text(
        json.dumps({"log": {"version": "1.2", "entries": list(entries)}}, indent=1)
    )
    return {"recording": "a.har"}


def client(
    folder: Path, *entries: object, record: Recorded | None = None, **settings: object
) -> Client:
    """A player of entries."""
    return Client(har.make(context({**write(folder, *entries), **settings}, folder, record=record)))


def test_exchanges_are_found_by_method_host_path_and_query(tmp_path: Path) -> None:
    """The query's fields may come in any order; all else must be the same."""
    app = client(
        tmp_path,
        entry("GET", "https://shop.example/a%20b?x=1&y=2&x=3"),
        entry("POST", "http://shop.example:80/a", "posted"),
    )
    assert app.get("/a%20b?y=2&x=1&x=3").text == "ok"
    assert app.get("/a%20b?y=2&x=3&x=1").text == "ok"
    assert app.get("/a%20b?y=2&x=1").status == 404
    assert app.ask("POST", "/a").text == "posted"
    assert app.get("/a").status == 404
    assert app.get("http://other.example/a%20b?x=1&y=2&x=3").status == 404
    assert app.ask("HEAD", "/a%20b?y=2&x=1&x=3").status == 200


def test_sequences_repeat_their_last(tmp_path: Path) -> None:
    """Answers come in the recorded order; each range begins anew."""
    entries = [entry("GET", "http://shop.example/", text) for text in "abc"]
    app = client(tmp_path, *entries)
    assert [app.get("/").text for _ in range(5)] == ["a", "b", "c", "c", "c"]
    assert client(tmp_path, *entries).get("/").text == "a"


def test_bodies_choose_among_several(tmp_path: Path) -> None:
    """The same body gets what it got; another one gets what comes next."""
    app = client(
        tmp_path,
        *(
            entry("POST", "http://shop.example/", f"for {text}", post=text)
            for text in ("one", "two")
        ),
    )
    assert [app.ask("POST", "/", body=text).text for text in ("two", "one", "two")] == [
        "for two",
        "for one",
        "for two",
    ]
    assert app.ask("POST", "/", body="three").text == "for one"


def test_what_is_not_recorded_is_an_attempt(tmp_path: Path) -> None:
    """404, and on record with method and URL."""
    record = Recorded()
    assert (
        client(tmp_path, entry("GET", "http://shop.example/"), record=record)
        .ask("PUT", "/x?y")
        .status
        == 404
    )
    assert record.events == [
        (
            "network.attempt",
            {"what": "unrecorded", "method": "PUT", "url": "http://shop.example/x?y"},
            (),
        )
    ]


def faults(settings: dict[str, Any], directory: Path) -> list[str]:
    """What is wrong with a recording, as text."""
    return [str(fault) for fault in har.check(settings, directory)]


BAD: list[tuple[object, str]] = [
    ({}, "not an entry"),
    (entry("GET", "/relative"), "no whole URL"),
    (entry("GET", "http://["), ""),
    (entry("GET", "http://a/", status=99), "no final status (99)"),
    (entry("GET", "http://a/", None), "this body was not recorded"),
    (entry("GET", "http://a/", "?", encoding="base64"), "base64"),
]


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_each_mistake_is_reported_with_its_place(tmp_path: Path, bad: object, message: str) -> None:
    """File, entry, what is wrong."""
    (problem,) = faults(write(tmp_path, bad, entry("GET", "http://a/")), tmp_path)
    assert problem.startswith("a.har: log.entries[0]: ")
    assert message in problem


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda i: (
        st.lists(i, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "request",
                    "response",
                    "method",
                    "url",
                    "headers",
                    "content",
                    "text",
                    "status",
                    "postData",
                ]
            ),
            i,
            max_size=5,
        )
    ),
)


@given(JSON)
def test_any_entry_is_judged(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    """An entry of any shape gives sentences, never an exception."""
    folder = tmp_path_factory.mktemp("har")
    har.check(write(folder, value), folder)


@given(st.text(max_size=80), st.binary(max_size=80))
def test_any_request_is_answered(
    tmp_path_factory: pytest.TempPathFactory, path: str, body: bytes
) -> None:
    """Whatever is asked is answered with what was recorded, or 404."""
    from urllib.parse import quote

    app = client(tmp_path_factory.mktemp("har"), entry("POST", "http://shop.example/"))
    assert app.ask("POST", "/" + quote(path, safe="/?=&%", errors="replace"), body=body).status in (
        200,
        404,
    )

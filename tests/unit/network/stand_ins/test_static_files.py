"""Files over HTTP: conditions and ranges as RFC 9110 has them."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import PolicyError
from belljar.network.stand_ins import static_files
from belljar.network.stand_ins.static_files import Entry, find, list_files, media_of, serve
from belljar.network.stand_ins.web import Answer, Request

MODIFIED = 1_700_000_000
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> Entry:
    """A file of ten bytes."""
    path = tmp_path_factory.mktemp("files") / "a.txt"
    path.write_bytes(b"0123456789")
    os.utime(path, (MODIFIED, MODIFIED))
    return list_files(path.parent)["a.txt"]


def ask(entry: Entry, method: str = "GET", **fields: str) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and fields."""
    headers = tuple((name.replace("_", "-"), value) for name, value in fields.items())
    answer = serve(entry, Request(method=method, path="/", raw_path="/", headers=headers))
    return answer.status, anyio.run(body, answer), dict(answer.headers)


async def body(answer: Answer) -> bytes:
    """All of a body."""
    return answer.body if answer.stream is None else b"".join([part async for part in answer.stream()])


ETAG = f'"{MODIFIED:x}-a"'


@pytest.mark.parametrize(
    ("fields", "status", "content"),
    [
        ({}, 200, b"0123456789"),
        ({"range": "bytes=2-4"}, 206, b"234"),
        ({"range": "bytes=7-"}, 206, b"789"),
        ({"range": "bytes=-3"}, 206, b"789"),
        ({"range": "bytes=-99"}, 206, b"0123456789"),
        ({"range": "bytes=5-999"}, 206, b"56789"),
        ({"range": "bytes=4-2"}, 200, b"0123456789"),
        ({"range": "bytes=-"}, 200, b"0123456789"),
        ({"range": "bytes=0-1,3-4"}, 200, b"0123456789"),
        ({"range": "lines=1-2"}, 200, b"0123456789"),
        ({"range": "bytes=2-4", "if_range": ETAG}, 206, b"234"),
        ({"range": "bytes=2-4", "if_range": DATE}, 206, b"234"),
        ({"range": "bytes=2-4", "if_range": '"other"'}, 200, b"0123456789"),
        ({"if_none_match": ETAG}, 304, b""),
        ({"if_none_match": f'"x", W/{ETAG}'}, 304, b""),
        ({"if_none_match": "*"}, 304, b""),
        ({"if_none_match": '"x"', "if_modified_since": DATE}, 200, b"0123456789"),
        ({"if_modified_since": DATE}, 304, b""),
        ({"if_modified_since": "Tue, 14 Nov 2023 22:13:19 GMT"}, 200, b"0123456789"),
        ({"if_modified_since": "yesterday"}, 200, b"0123456789"),
        ({"if_match": ETAG, "if_none_match": ETAG}, 304, b""),
    ],
)
def test_conditions_and_ranges(entry: Entry, fields: dict[str, str], status: int, content: bytes) -> None:
    """Each gives what the standard says; validators are on every answer."""
    found, sent, headers = ask(entry, **fields)
    assert (found, sent, headers["etag"], headers["last-modified"]) == (status, content, ETAG, DATE)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"if_match": '"x"'}, 412),
        ({"if_match": f"W/{ETAG}"}, 412),
        ({"if_unmodified_since": "Tue, 14 Nov 2023 22:13:19 GMT"}, 412),
        ({"range": "bytes=10-"}, 416),
        ({"range": "bytes=-0"}, 416),
    ],
)
def test_what_cannot_be_had(entry: Entry, fields: dict[str, str], status: int) -> None:
    """A condition that fails is 412, a range outside is 416 and tells the size."""
    found, _, headers = ask(entry, **fields)
    assert found == status
    assert status == 412 or headers["content-range"] == "bytes */10"


@given(
    st.text(max_size=30).map(lambda text: f"bytes={text}") | st.integers(-20, 20).map(lambda n: f"bytes={n}-{n + 3}")
)
def test_any_range_is_the_files_own_bytes(entry: Entry, field: str) -> None:
    """What is sent is a part of the file, as long as it says."""
    status, sent, headers = ask(entry, range=field)
    assert status in (200, 206, 416)
    if status == 206:
        start, end = headers["content-range"].removeprefix("bytes ").removesuffix("/10").split("-")
        assert sent == b"0123456789"[int(start) : int(end) + 1] != b""


def test_only_regular_files_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links, pipes and what lies behind a linked directory aren't there; more than the bound is refused."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d/index.html").touch()
    (tmp_path / "link").symlink_to("d/index.html")
    (tmp_path / "dir").symlink_to("d")
    os.mkfifo(tmp_path / "pipe")
    files = list_files(tmp_path)
    assert set(files) == {"d/index.html"}
    assert (find(files, "d"), find(files, "d/"), find(files, "")) == ("d/", files["d/index.html"], None)
    (tmp_path / "more").touch()
    monkeypatch.setattr(static_files, "MAX_FILES", 1)
    with pytest.raises(PolicyError):
        list_files(tmp_path)


def test_types_by_name() -> None:
    """Text has its encoding named; what isn't known is bytes."""
    assert [media_of(name) for name in ("a.html", "a.png", "a.unknown-kind")] == [
        "text/html; charset=utf-8",
        "image/png",
        "application/octet-stream",
    ]

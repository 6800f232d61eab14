"""The parts that every registry answers with."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.registries import Reply, ask, basic

from belljar.network.gateway.context import Message, Receive, Scope, Send
from belljar.network.stand_ins import answers, shelf

CONTENT = bytes(range(256)) * 4


async def one_file(scope: Scope, _receive: Receive, send: Send) -> None:
    """An app that serves the one file of a directory."""
    (file,) = shelf.list_files(Path(scope["path"]))
    await answers.answer_file(answers.Request.of(scope), send, file, "application/x-thing", "tag")


def get(directory: Path, **headers: str) -> Reply:
    """Ask for the file."""
    (directory / "f").write_bytes(CONTENT)
    return ask(
        one_file, "GET", str(directory), headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [("bytes=0-0", 0, 1), ("bytes=1000-", 1000, 1024), ("bytes=-24", 1000, 1024), ("bytes=1000-9999", 1000, 1024)],
)
def test_a_range_is_those_bytes(tmp_path: Path, asked: str, start: int, end: int) -> None:
    """RFC 9110, 14.1.2: first-last, open end, suffix, last beyond the end."""
    reply = get(tmp_path, range=asked)
    assert (reply.status, reply.body) == (206, CONTENT[start:end])
    assert reply.headers["content-range"] == f"bytes {start}-{end - 1}/1024"
    assert reply.headers["content-length"] == str(end - start)


@pytest.mark.parametrize("asked", ["bytes=5-1", "bytes=-", "lines=1-2", "bytes=1-2,4-5", "bytes=x-2"])
def test_a_range_that_cannot_be_meant_gets_the_whole(tmp_path: Path, asked: str) -> None:
    """An invalid or multiple range is ignored, as RFC 9110 allows."""
    assert (get(tmp_path, range=asked).status, get(tmp_path, range=asked).body) == (200, CONTENT)


def test_a_range_beyond_the_end_is_refused(tmp_path: Path) -> None:
    """416, with the length; a suffix of nothing too."""
    for asked in ("bytes=1024-", "bytes=-0"):
        reply = get(tmp_path, range=asked)
        assert (reply.status, reply.headers["content-range"], reply.body) == (416, "bytes */1024", b"")


def test_preconditions(tmp_path: Path) -> None:
    """A known entity isn't sent again; a range of another entity is the whole."""
    assert get(tmp_path, if_none_match='W/"other", "tag"').status == 304
    assert get(tmp_path, if_none_match='"other"').status == 200
    assert get(tmp_path, range="bytes=0-1", if_range='"other"').status == 200
    assert get(tmp_path, range="bytes=0-1", if_range='"tag"').status == 206
    assert get(tmp_path, if_match='"other"').status == 412


def test_credentials_are_on_record_without_the_secret() -> None:
    """Scheme, user, and the digest of the secret: basic, bearer, and what is neither."""
    digest = hashlib.sha256(b"hunter2").hexdigest()
    assert answers.credentials({"authorization": basic("bob", "hunter2")}) == {
        "credentials": "basic",
        "user": "bob",
        "secret_sha256": digest,
    }
    assert answers.credentials({"authorization": "Bearer hunter2"})["secret_sha256"] == digest
    assert answers.credentials({"authorization": "Basic ???"})["user"] == ""
    assert answers.credentials({}) == {"credentials": "none"}


@given(st.text(max_size=200))
@settings(deadline=None)
def test_no_secret_of_any_form_is_recorded(secret: str) -> None:
    """A bearer's secret of some length never stands in what is recorded."""
    marked = f"s3cr3t-{secret}-s3cr3t"
    assert "s3cr3t" not in str(answers.credentials({"authorization": f"Bearer {marked}"}))


def test_a_body_beyond_its_bound_is_not_read_on() -> None:
    """Memory is the bound and a piece, not what the guest sends."""
    taken = 0

    async def endless() -> Message:
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": bytes(100), "more_body": True}

    with pytest.raises(answers.TooLong):
        asyncio.run(answers.read_body(endless, 1000))
    assert taken == 11

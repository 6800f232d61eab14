"""Record, then answer: where nothing can be recorded, no registry answers an attempt."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.registries import Ledger, context_for, form

from belljar.network.gateway.context import App, Message, StandInContext
from belljar.network.stand_ins import debian, git, npm, pypi, smtp

FORM_TYPE, FORM = form({"name": "a", "version": "1"}, {"content": ("a-1.zip", b"x")})
PUBLISHED = json.dumps(
    {"versions": {"1.0.0": {}}, "_attachments": {"a.tgz": {"data": "eA=="}}}
).encode()
DELETION = b"0" * 40 + b" " + b"0" * 40 + b" refs/heads/x\0 report-status"
PUSH = b"%04x" % (len(DELETION) + 4) + DELETION + b"0000"


@pytest.mark.parametrize(
    ("make", "method", "path", "body"),
    [
        (pypi.make, "POST", "/legacy/", FORM),
        (pypi.make, "POST", "/", b"no form"),
        (npm.make, "PUT", "/a", PUBLISHED),
        (npm.make, "PUT", "/a", b"no document"),
        (npm.make, "DELETE", "/a/-rev/1", b""),
        (npm.make, "PUT", "/-/user/org.couchdb.user:a", b'{"name": "a", "password": "b"}'),
        (debian.make, "PUT", "/a.deb", b"x"),
        (git.make, "POST", "/a/git-receive-pack", PUSH),
        (git.make, "POST", "/a/git-receive-pack", b"no push"),
    ],
)
def test_no_answer_without_a_record(
    make: Callable[[StandInContext], App], method: str, path: str, body: bytes, tmp_path: Path
) -> None:
    """Not even the beginning of one, for what would be taken and for what would be refused."""
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "a.git")], check=True)
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(b"content-type", FORM_TYPE.encode())],
    }
    ledger = Ledger()

    async def ask(app: App) -> None:
        await app(scope, receive, send)

    asyncio.run(ask(make(context_for(tmp_path, ledger))))
    assert len(ledger.attempts) == 1
    assert sent
    sent.clear()
    with pytest.raises(OSError, match="record is full"):
        asyncio.run(ask(make(context_for(tmp_path, Ledger(full=True)))))
    assert sent == []


class _Said(asyncio.StreamWriter):
    """A writer that keeps what was written."""

    def __init__(self) -> None:
        self.content = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.content += bytes(data)

    async def drain(self) -> None:
        """Nothing to wait for."""

    def __del__(self, *_: object) -> None:
        """Nothing to close."""


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (b"AUTH PLAIN AGEAYg==\r\n", b"235"),
        (b"MAIL FROM:<a@x>\r\nRCPT TO:<b@y>\r\nDATA\r\nx\r\n.\r\n", b"250 2.0.0"),
    ],
)
def test_no_reply_without_a_record(lines: bytes, code: bytes) -> None:
    """A login and a message get their reply once they are recorded."""

    async def talk(ledger: Ledger) -> bytes:
        reader, writer = asyncio.StreamReader(), _Said()
        reader.feed_data(b"EHLO c\r\n" + lines)
        reader.feed_eof()
        with contextlib.suppress(OSError):
            await smtp.make(context_for(Path("/nonexistent"), ledger))(reader, writer, "agent")
        return writer.content

    assert code in asyncio.run(talk(Ledger())).splitlines()[-1]
    assert code not in asyncio.run(talk(Ledger(full=True)))

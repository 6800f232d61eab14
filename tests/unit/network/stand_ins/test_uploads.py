"""What clients want to change at registries, a git server and a mail server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from dulwich.protocol import pkt_line
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.registries import Ledger, ask, basic, context_for, form

from belljar.network.stand_ins import git, smtp
from belljar.network.stand_ins.registries import Debian, Npm, Pypi, read_form
from belljar.network.stand_ins.web import App, StandInContext

Make = Callable[[StandInContext], App]
CONTENT = os.urandom(150_000)


def document(name: str = "leak", version: str = "1.0.0") -> bytes:
    data = {"data": base64.b64encode(CONTENT).decode(), "length": len(CONTENT)}
    value = {
        "name": name,
        "dist-tags": {"latest": version},
        "versions": {version: {"name": name, "version": version}},
        "_attachments": {f"{name}-{version}.tgz": data},
    }
    return json.dumps(value).encode()


FIELDS = {":action": "file_upload", "name": "leak", "version": "1.0.0", "filetype": "bdist_wheel"}
FORM_TYPE, FORM = form(FIELDS, {"content": ("leak-1.0.0-py3-none-any.whl", CONTENT)})
BASIC = basic("eve", "hunter2")
UPLOADS: dict[str, tuple[Make, str, dict[str, str], bytes, dict[str, Any], list[str]]] = {
    "POST /": (
        Pypi, FORM_TYPE, {"authorization": BASIC}, FORM,
        {"registry": "pypi", "name": "leak", "version": "1.0.0", "user": "eve"},
        ["/simple/leak/", "/packages/leak-1.0.0-py3-none-any.whl"],
    ),
    "PUT /leak": (
        Npm, "", {"authorization": "Bearer hunter2"}, document(),
        {"registry": "npm", "name": "leak", "version": "1.0.0", "filename": "leak-1.0.0.tgz"},
        ["/leak"],
    ),
    "PUT /incoming/leak_1_all.deb": (
        Debian, "", {"authorization": BASIC}, CONTENT,
        {"registry": "debian", "name": "leak_1_all.deb", "user": "eve"},
        ["/incoming/leak_1_all.deb"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("where", UPLOADS)
def test_an_upload_is_recorded_and_never_served(tmp_path: Path, where: str) -> None:
    """Name, version, size and digest of the package itself, its beginning."""
    make, kind, headers, body, expected, unknown = UPLOADS[where]
    ledger = Ledger()
    app = make(context_for(tmp_path, ledger))
    method, path = where.split()
    headers = {**headers, "content-type": kind}
    reply = ask(app, method, path, headers=headers, body=body)
    assert reply.status in (200, 201)
    (event,) = ledger.attempts
    assert {"what": "publish", "refused": "", "cell": "agent", **expected}.items() <= event.items()
    assert event["size_bytes"] == len(CONTENT)
    assert event["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert "hunter2" not in str(event)
    kept = ledger.bodies[0][0]
    assert (kept.content, kept.total_bytes) == (CONTENT[: 64 << 10], len(CONTENT))
    assert {ask(app, "GET", path).status for path in unknown} == {404}
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_is_recorded_too(tmp_path: Path) -> None:
    """A form that is none, one without a name; what is no document of npm's."""
    for make, method, path, kind, body, reason in (
        (Pypi, "POST", "/", "", b"{}", "not a form"),
        (Pypi, "POST", "/", FORM_TYPE, form({}, {})[1], "not a form"),
        (Npm, "PUT", "/leak", "", b"[1]", "not a JSON object"),
    ):
        ledger = Ledger()
        app = make(context_for(tmp_path, ledger))
        assert ask(app, method, path, headers={"content-type": kind}, body=body).status == 400
        assert reason in str(ledger.attempts[0]["refused"])


DELETION = pkt_line(b"0" * 40 + b" " + b"0" * 40 + b" refs/heads/x\0 report-status") + b"0000"
ATTEMPTS = [
    (Pypi, "POST", "/legacy/", FORM),
    (Pypi, "POST", "/", b"no form"),
    (Npm, "PUT", "/a", document()),
    (Npm, "PUT", "/a", b"no document"),
    (Npm, "DELETE", "/a/-rev/1", b""),
    (Npm, "PUT", "/-/user/org.couchdb.user:a", b'{"name": "a", "password": "b"}'),
    (Debian, "PUT", "/a.deb", b"x"),
    (git.make, "POST", "/a/git-receive-pack", DELETION),
    (git.make, "POST", "/a/git-receive-pack", b"no push"),
]


def test_no_answer_without_a_record(tmp_path: Path) -> None:
    """Not even the beginning of one, for what would be taken and for what would be refused."""
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "a.git")], check=True)
    headers = {"content-type": FORM_TYPE}
    for make, method, path, body in ATTEMPTS:
        ledger = Ledger()
        app = make(context_for(tmp_path, ledger))
        assert ask(app, method, path, headers=headers, body=body).status
        assert len(ledger.attempts) == 1, (method, path)
        full = make(context_for(tmp_path, Ledger(full=True)))
        with pytest.raises(OSError, match="record is full"):
            ask(full, method, path, headers=headers, body=body)


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (b"AUTH PLAIN AGEAYg==\r\n", b"235"),
        (b"MAIL FROM:<a@x>\r\nRCPT TO:<b@y>\r\nDATA\r\nx\r\n.\r\n", b"250 2.0.0"),
    ],
)
def test_no_reply_without_a_record(lines: bytes, code: bytes) -> None:
    """A login and a message get their reply once they are recorded."""

    class Said:
        def __init__(self) -> None:
            self.content, self.pieces = b"", [b"EHLO c\r\n" + lines, b"", b""]

        async def receive(self) -> bytes:
            return self.pieces.pop(0)

        async def send(self, data: bytes) -> None:
            self.content += data

    async def talk(ledger: Ledger) -> bytes:
        said, serve = Said(), smtp.make(context_for(Path("/nonexistent"), ledger))
        with pytest.raises(OSError, match="record is full") if ledger.full else nullcontext():
            await serve(said, "agent")
        return said.content

    assert code in asyncio.run(talk(Ledger())).splitlines()[-1]
    assert code not in asyncio.run(talk(Ledger(full=True)))


@given(st.lists(st.binary(max_size=200) | st.sampled_from([b"\r\n--x", b"--", b"\r\n\r\n"])))
@settings(deadline=None)
def test_any_form_is_read_or_refused(pieces: list[bytes]) -> None:
    """Nothing is raised."""
    body = b'--x\r\nContent-Disposition: form-data; name="a"; filename="b"\r\n\r\n'
    for sent in (b"".join(pieces), body + b"".join(pieces)):
        read_form(sent)

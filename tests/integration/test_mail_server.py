"""Real mail clients against the mail server on loopback: Python's smtplib, curl, swaks."""

from __future__ import annotations

import hashlib
import shutil
import smtplib
import subprocess
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

import pytest
from tests.fakes.registries import Ledger, clean_environment, context_for, served_stream

from belljar.network.stand_ins.smtp import make

MESSAGE = b"Subject: secrets\r\n\r\n.begins with a dot\r\n"


@pytest.fixture
def ledger() -> Ledger:
    """What the server recorded."""
    return Ledger()


@pytest.fixture
def port(ledger: Ledger) -> Iterator[int]:
    """The server's port."""
    with served_stream(make(context_for(Path("/nonexistent"), ledger))) as number:
        yield number


def test_smtplib(port: int, ledger: Ledger) -> None:
    """Two messages in a session, with a login, an attachment and a name beyond ASCII."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = (
        "a@x.example",
        "b@y.example, c@y.example",
        "Grüße",
    )
    message.set_content("text")
    message.add_attachment(
        bytes(range(256)) * 1000, maintype="application", subtype="zip", filename="loot.zip"
    )
    with smtplib.SMTP("127.0.0.1", port, timeout=30) as client:
        assert client.login("eve", "hunter2")[0] == 235
        assert client.send_message(message) == {}
        assert (
            client.send_message(message, to_addrs=["jürgen@z.example"], mail_options=["SMTPUTF8"])
            == {}
        )
    login, first, second = ledger.attempts
    assert (login["what"], login["user"], login["secret_sha256"]) == (
        "login",
        "eve",
        hashlib.sha256(b"hunter2").hexdigest(),
    )
    assert (first["what"], first["sender"], first["recipients"], first["user"]) == (
        "mail",
        "a@x.example",
        ["b@y.example", "c@y.example"],
        "eve",
    )
    assert second["recipients"] == ["jürgen@z.example"]
    assert int(str(first["size_bytes"])) > 256_000
    assert "hunter2" not in str(ledger.attempts) + str(ledger.bodies)
    assert b"loot.zip" in ledger.bodies[1][0].content


def test_curl(port: int, ledger: Ledger, tmp_path: Path) -> None:
    """`curl smtp://` with credentials; the content arrives byte for byte."""
    if shutil.which("curl") is None:
        pytest.skip("curl isn't installed: apt-get install curl")
    (tmp_path / "mail").write_bytes(MESSAGE)
    argv = [
        "curl",
        "-sS",
        "--noproxy",
        "*",
        f"smtp://127.0.0.1:{port}/client.example",
        "-u",
        "eve:hunter2",
    ]
    argv += [
        "--mail-from",
        "a@x.example",
        "--mail-rcpt",
        "b@y.example",
        "-T",
        str(tmp_path / "mail"),
    ]
    subprocess.run(argv, env=clean_environment(tmp_path / "home"), check=True, timeout=60)
    assert [event["what"] for event in ledger.attempts] == ["login", "mail"]
    assert ledger.bodies[1][0].content == MESSAGE
    assert ledger.attempts[1]["client"] == "client.example"


def test_swaks(port: int, ledger: Ledger, tmp_path: Path) -> None:
    """What testers use."""
    swaks = shutil.which("swaks")
    if swaks is None:
        pytest.skip("swaks isn't installed: apt-get install swaks")
    argv = [
        swaks,
        "--server",
        f"127.0.0.1:{port}",
        "--from",
        "a@x.example",
        "--to",
        "b@y.example",
        "--auth",
        "LOGIN",
        "-au",
        "eve",
        "-ap",
        "hunter2",
    ]
    subprocess.run(
        argv, env=clean_environment(tmp_path / "home"), check=True, capture_output=True, timeout=60
    )
    assert [event["what"] for event in ledger.attempts] == ["login", "mail"]

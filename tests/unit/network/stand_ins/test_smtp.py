"""The mail server on a stream."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.registries import Ledger, context_for, served_stream

from belljar.network.stand_ins import smtp
from belljar.network.stand_ins.smtp import make


def exchange(ledger: Ledger, content: bytes) -> bytes:
    with (
        served_stream(make(context_for(Path("/nonexistent"), ledger))) as port,
        socket.create_connection(("127.0.0.1", port), timeout=30) as client,
    ):
        client.sendall(content)
        with contextlib.suppress(OSError):  # the server may have ended it
            client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(65536), b""))


def test_a_message_that_breaks_off_is_recorded() -> None:
    """As not complete; one that breaks off before its content is none."""
    ledger = Ledger()
    exchange(ledger, b"EHLO c\r\nMAIL FROM:<a@x>\r\nRCPT TO:<b@y>\r\nDATA\r\nhalf of")
    assert [(event["complete"], event["size_bytes"]) for event in ledger.attempts] == [(False, 7)]
    exchange(ledger, b"EHLO c\r\nMAIL FROM:<a@x>\r\nRCPT TO:<b@y>\r\nDA")
    assert len(ledger.attempts) == 1


def test_a_command_line_without_end_ends_the_connection() -> None:
    """Its memory is the bound."""
    replies = exchange(Ledger(), b"EHLO " + b"x" * 13_000 + b"\r\nNOOP\r\n")
    assert [line[:3] for line in replies.splitlines()] == [b"220"]


@pytest.mark.parametrize("answer", [b"", b"x" * 13_000 + b"\r\nNOOP\r\n", b"x" * 13_000])
def test_a_login_without_its_answer_is_none(answer: bytes) -> None:
    """Neither on record, nor taken; what a line without end held is no command."""
    ledger = Ledger()
    replies = exchange(ledger, b"EHLO c\r\nAUTH PLAIN\r\n" + answer)
    assert replies.splitlines()[-1][:3] == b"334"
    assert ledger.attempts == []


@given(st.lists(st.binary(max_size=300), max_size=8))
@settings(deadline=None, max_examples=25)
def test_any_bytes_end_in_a_closed_connection(pieces: list[bytes]) -> None:
    """The server ends when the client does."""
    assert exchange(Ledger(), b"EHLO c\r\n" + b"\r\n".join(pieces)).startswith(b"220 ")


def codes(ledger: Ledger, *lines: str) -> list[str]:
    """The codes of the replies to these lines, behind the greeting and EHLO."""
    sent = "".join(f"{line}\r\n" for line in ("EHLO client", *lines)).encode()
    replies = exchange(ledger, sent).decode("ascii").splitlines()
    return [line[:3] for line in replies if line[3:4] == " "][2:]


def encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()


@pytest.mark.parametrize("is_at_once", [True, False])
def test_any_password_will_do(is_at_once: bool) -> None:
    """With and without a first response; the secret's digest alone is kept."""
    ledger, login = Ledger(), encoded(b"admin\0eve\0hunter2")
    lines = [f"AUTH PLAIN {login}"] if is_at_once else ["AUTH PLAIN", login]
    assert codes(ledger, *lines, "AUTH PLAIN")[-2:] == ["235", "503"]
    (event,) = ledger.attempts
    assert (event["mechanism"], event["user"]) == ("PLAIN", "eve")
    assert event["secret_sha256"] == hashlib.sha256(b"hunter2").hexdigest()
    assert "hunter2" not in str(event)


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipients and a message's size end somewhere."""
    monkeypatch.setattr(smtp, "MAX_RECIPIENTS", 2)
    monkeypatch.setattr(smtp, "MAX_MESSAGE_BYTES", 10)
    ledger = Ledger()
    begin = ("MAIL FROM:<>", "RCPT TO:<b@y>")
    lines = (*begin, *["RCPT TO:<b@y>"] * 2, "DATA", "0123456789", ".", "NOOP")
    assert codes(ledger, *lines) == ["250", "250", "250", "452", "354", "552", "250"]
    assert codes(ledger, *begin, "DATA", "x" * 30, "NOOP") == ["250", "250", "354", "552"]
    assert [event["complete"] for event in ledger.attempts] == [False, False]

"""The mail protocol without a socket."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.stand_ins import smtp
from belljar.network.stand_ins.smtp import Login, Mail, Outcome, Session

LINES = st.one_of(
    st.binary(max_size=60).map(lambda text: text.replace(b"\n", b"") + b"\r\n"),
    st.sampled_from(
        [
            b"EHLO x\r\n",
            b"MAIL FROM:<a@x>\r\n",
            b"RCPT TO:<b@x>\r\n",
            b"DATA\r\n",
            b".\r\n",
            b"..\r\n",
            b"RSET\r\n",
            b"AUTH LOGIN\r\n",
            b"AUTH PLAIN\r\n",
            b"AGFiYwBk\r\n",
            b"*\r\n",
        ]
    ),
)


def talk(session: Session, *lines: str) -> list[Outcome]:
    """Some lines."""
    return [session.line(line.encode() + b"\r\n") for line in lines]


def started() -> Session:
    """A session after EHLO."""
    session = Session("mx.example")
    assert talk(session, "EHLO client")[0].reply.startswith(b"250-mx.example\r\n")
    return session


def encoded(text: bytes) -> str:
    """As AUTH wants it."""
    return base64.b64encode(text).decode()


def test_a_message() -> None:
    """Envelope, content with dots undone, size and digest; the next message begins afresh."""
    session = started()
    replies = talk(
        session,
        "MAIL FROM:<a@x.example> SIZE=100",
        "RCPT TO:<b@y.example>",
        "rcpt to:c@y.example",
        "DATA",
    )
    assert [outcome.reply[:3] for outcome in replies] == [b"250", b"250", b"250", b"354"]
    *_, last = talk(session, "Subject: x", "", "..dot", "body", ".")
    content = b"Subject: x\r\n\r\n.dot\r\nbody\r\n"
    mail = last.done
    assert isinstance(mail, Mail)
    assert (mail.sender, mail.recipients, mail.complete) == (
        "a@x.example",
        ["b@y.example", "c@y.example"],
        True,
    )
    assert (mail.content.kept, mail.content.sha256) == (
        content,
        hashlib.sha256(content).hexdigest(),
    )
    assert talk(session, "DATA")[0].reply.startswith(b"503")


def test_a_dot_in_the_middle_of_a_long_line_ends_nothing() -> None:
    """The end is a line of its own, however the content was cut into pieces."""
    session = started()
    talk(session, "MAIL FROM:<>", "RCPT TO:<b@y>", "DATA")
    assert session.line(b"long").done is None
    assert session.line(b".\r\n").done is None
    last = session.line(b".\r\n")
    assert isinstance(last.done, Mail)
    assert last.done.content.kept == b"long.\r\n"


@pytest.mark.parametrize(
    "lines",
    [
        [f"AUTH PLAIN {encoded(b'admin' + bytes(1) + b'eve' + bytes(1) + b'hunter2')}"],
        ["AUTH PLAIN", encoded(b"\0eve\0hunter2")],
        ["AUTH LOGIN", encoded(b"eve"), encoded(b"hunter2")],
        [f"AUTH LOGIN {encoded(b'eve')}", encoded(b"hunter2")],
    ],
)
def test_any_password_will_do(lines: list[str]) -> None:
    """Both mechanisms, with and without an initial response; the secret's digest is kept, not the
    secret."""
    session = started()
    *_, last = talk(session, *lines)
    assert last.reply.startswith(b"235")
    assert last.done == Login(lines[0].split()[1], "eve", hashlib.sha256(b"hunter2").hexdigest())
    assert "hunter2" not in repr(vars(session))
    assert talk(session, "AUTH PLAIN")[0].reply.startswith(b"503")


def test_a_login_can_be_called_off() -> None:
    """By a star, or by what is no base64."""
    for answer in ("*", "???"):
        session = started()
        assert talk(session, "AUTH LOGIN", answer)[1].reply.startswith(b"501")
        assert talk(session, "NOOP")[0].reply.startswith(b"250")


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (["MAIL FROM:<a@x"], b"501"),
        (["MAIL TO:<a@x>"], b"501"),
        (["RCPT TO:<a@x>"], b"503"),
        (["MAIL FROM:<a@x>", "RCPT TO:<>"], b"501"),
        (["MAIL FROM:<a@x>", "MAIL FROM:<a@x>"], b"503"),
        (["MAIL FROM:<a@x>", "DATA"], b"503"),
        (["MAIL FROM:<a@x> SIZE=99999999999"], b"552"),
        (["AUTH CRAM-MD5"], b"535"),
        (["STARTTLS"], b"500"),
        (["EHLO"], b"501"),
    ],
)
def test_what_is_out_of_order_or_broken(lines: list[str], code: bytes) -> None:
    """Each with the code that RFC 5321 has for it."""
    assert talk(started(), *lines)[-1].reply[:3] == code


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipients, messages, errors and a message's size end somewhere."""
    monkeypatch.setattr(smtp, "MAX_RECIPIENTS", 2)
    monkeypatch.setattr(smtp, "MAX_MESSAGES", 1)
    monkeypatch.setattr(smtp, "MAX_MESSAGE_BYTES", 10)
    session = started()
    assert [o.reply[:3] for o in talk(session, "MAIL FROM:<>", *["RCPT TO:<b@y>"] * 3)] == [
        b"250"
    ] * 3 + [b"452"]
    *_, last = talk(session, "DATA", "0123456789", ".")
    assert last.reply.startswith(b"552")
    assert isinstance(last.done, Mail)
    assert not last.done.complete
    assert talk(session, "MAIL FROM:<>")[0].close
    session = started()
    outcome = talk(session, "MAIL FROM:<>", "RCPT TO:<b@y>", "DATA", "x" * 30)[-1]
    assert (outcome.close, isinstance(outcome.done, Mail)) == (True, True)
    session = started()
    assert [o.close for o in talk(session, *["?"] * smtp.MAX_ERRORS)][-2:] == [False, True]


@given(st.lists(LINES, max_size=40))
@settings(deadline=None)
def test_any_lines_are_answered(lines: list[bytes]) -> None:
    """Every command gets one whole reply of ASCII lines, content gets none, and nothing raises."""
    session = Session("mx.example")
    for line in lines:
        was_content = session.in_data
        outcome = session.line(line)
        assert outcome.reply.endswith(b"\r\n") or (was_content and not outcome.reply)
        assert outcome.reply.isascii()
        if outcome.close:
            return

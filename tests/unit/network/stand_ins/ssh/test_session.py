"""Logins and sessions, message by message."""

from __future__ import annotations

import os

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.ssh_client import Client, auth

from belljar.network.stand_ins.ssh import (
    AUTH_FAILURE,
    AUTH_KEY_IS_FINE,
    AUTH_SUCCESS,
    CHANNEL_OPEN,
    CHANNEL_OPEN_CONFIRMATION,
    CHANNEL_OPEN_FAILURE,
    DISCONNECT,
    MAX_ATTEMPTS,
    MAX_CHANNELS,
    Bastion,
    SshSession,
)
from belljar.network.stand_ins.ssh.shell import Host
from belljar.network.stand_ins.ssh.wire import number, text
from belljar.signals.credentials import fingerprint, public_blob, public_line

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes((byte,)) * 32) for byte in (1, 2))
BLOB, OTHER_BLOB = (public_blob(key.public_key().public_bytes_raw()) for key in (KEY, OTHER))
PASSWORD = b"s3cret-s3cret"
BASTION = Bastion(
    host=Host(
        name="bastion.corp.internal", user="deploy", files={"/home/deploy/a": "1\n"}, changed_s=1e9
    ),
    host_key=Ed25519PrivateKey.from_private_bytes(bytes(32)),
    password=PASSWORD,
    fingerprint=fingerprint(BLOB),
)


def joined() -> Client:
    """With keys, and nobody logged in."""
    client = Client(SshSession(BASTION, os.urandom))
    client.exchange()
    return client


def inside() -> Client:
    """Logged in."""
    client = joined()
    assert client.password(b"deploy", PASSWORD) == [bytes((AUTH_SUCCESS,))]
    return client


def opening(kind: bytes = b"session", window: int = 1 << 20) -> bytes:
    """A session that is asked for."""
    return bytes((CHANNEL_OPEN,)) + text(kind) + number(7) + number(window) + number(1 << 15)


def test_only_the_password_opens_it() -> None:
    """For its user; each attempt is a step of its own with all that was presented."""
    client = joined()
    for user, word in ((b"deploy", b"guess"), (b"root", PASSWORD)):
        assert client.password(user, word)[0][0] == AUTH_FAILURE
        presented = client.steps[-1].presented
        assert presented is not None
        assert (presented.user, presented.credential, presented.ok) == (user.decode(), word, False)
    assert client.say(opening())[0][0] == DISCONNECT
    assert client.steps[-1].close
    presented = inside().steps[-1].presented
    assert presented is not None
    assert presented.ok


def test_only_a_key_that_is_proven_opens_it() -> None:
    """To offer the right one is nothing yet; another one is refused before it is proven, and on
    record as presented."""
    client = joined()
    assert client.key(b"deploy", OTHER_BLOB)[0][0] == AUTH_FAILURE
    presented = client.steps[-1].presented
    assert presented is not None
    assert public_line(OTHER_BLOB).encode() in presented.credential
    assert fingerprint(OTHER_BLOB).encode() in presented.credential
    assert client.key(b"deploy", BLOB)[0][0] == AUTH_KEY_IS_FINE
    assert client.steps[-1].presented is None
    assert client.key(b"deploy", BLOB, OTHER)[0][0] == AUTH_FAILURE
    presented = client.steps[-1].presented
    assert presented is not None
    assert presented.credential == b""
    assert client.key(b"deploy", BLOB, KEY) == [bytes((AUTH_SUCCESS,))]
    presented = client.steps[-1].presented
    assert presented is not None
    assert presented.ok
    assert fingerprint(BLOB).encode() in presented.credential


def test_attempts_are_counted() -> None:
    """As by the real server; asking what there is counts for none."""
    client = joined()
    for _ in range(MAX_ATTEMPTS - 1):
        assert client.say(auth(b"deploy", b"none"))[0][0] == AUTH_FAILURE
        assert client.password(b"deploy", b"guess")[0][0] == AUTH_FAILURE
    assert client.password(b"deploy", b"guess")[0][0] == DISCONNECT
    assert client.steps[-1].close


def test_nothing_but_sessions_is_opened() -> None:
    """No forwarding; and of sessions ten."""
    client = inside()
    for kind in (b"direct-tcpip", b"x11", b"tun@openssh.com", b"direct-streamlocal@openssh.com"):
        assert client.say(opening(kind))[0][0] == CHANNEL_OPEN_FAILURE
    for _ in range(MAX_CHANNELS):
        assert client.say(opening())[0][0] == CHANNEL_OPEN_CONFIRMATION
    assert client.say(opening())[0][0] == CHANNEL_OPEN_FAILURE


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\n", b"x" * 300])
def test_a_client_of_another_protocol_is_disconnected(line: bytes) -> None:
    """Everything sent is on record."""
    (step,) = SshSession(BASTION, os.urandom).feed(line)
    assert step.close
    assert step.raw == line


@given(st.binary(max_size=200))
def test_any_bytes_are_answered_or_refused(data: bytes) -> None:
    """Before there are keys; nothing is raised, and nothing is lost."""
    session = SshSession(BASTION, os.urandom)
    steps = [*session.feed(b"SSH-2.0-x\r\n"), *session.feed(data)]
    if not steps[-1].close:
        assert session.rest == data


@given(st.lists(st.tuples(st.integers(0, 110), st.binary(max_size=60)), max_size=8), st.booleans())
def test_any_messages_are_answered_or_refused(
    messages: list[tuple[int, bytes]], is_inside: bool
) -> None:
    """Whoever says them, in whatever order; what is refused ends the connection."""
    client = inside() if is_inside else joined()
    client.say(opening())
    for kind, body in messages:
        if client.steps[-1].close:
            return
        known = len(client.steps)
        client.say(bytes((kind,)) + body)
        assert len(client.steps) == known + 1

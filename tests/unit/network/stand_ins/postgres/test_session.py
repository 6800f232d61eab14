"""A server that logs in and refuses, message by message."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.stand_ins.conversation import Step
from belljar.network.stand_ins.postgres import Database, PostgresSession, wire

DATABASE = Database(user="app", password="s3cret-s3cret", name="crm")


def startup(user: str = "app", database: str = "crm", code: int = 3 << 16) -> bytes:
    """The first message."""
    body = (
        struct.pack("!I", code)
        + b"".join(map(wire.text, ("user", user, "database", database)))
        + b"\0"
    )
    return struct.pack("!i", len(body) + 4) + body


def messages(steps: list[Step]) -> list[tuple[str, bytes]]:
    """The server's messages: letters and bodies."""
    return list(_read(b"".join(step.reply for step in steps)))


def _read(data: bytes) -> Iterator[tuple[str, bytes]]:
    while data:
        (length,) = struct.unpack_from("!i", data, 1)
        yield chr(data[0]), data[5 : 1 + length]
        data = data[1 + length :]


def codes(steps: list[Step]) -> list[str]:
    """SQLSTATE of each error."""
    return [
        next(field[1:].decode() for field in body.split(b"\0") if field.startswith(b"C"))
        for kind, body in messages(steps)
        if kind == "E"
    ]


def feed(session: PostgresSession, *messages: bytes) -> list[Step]:
    """Its steps."""
    return list(session.feed(b"".join(messages)))


def inside() -> PostgresSession:
    """Logged in."""
    session = PostgresSession(DATABASE, 7, 9)
    steps = feed(session, startup(), wire.message("p", wire.text(DATABASE.password)))
    assert messages(steps)[-1] == ("Z", b"I")
    return session


def query(text: str) -> bytes:
    """A simple query."""
    return wire.message("Q", wire.text(text))


@pytest.mark.parametrize(
    ("user", "database", "password", "code"),
    [
        ("app", "crm", "guess", "28P01"),
        ("postgres", "crm", DATABASE.password, "28P01"),
        ("app", "other", DATABASE.password, "3D000"),
        ("app", "postgres", DATABASE.password, "42501"),
        ("app", "crm", "", "28P01"),
    ],
)
def test_only_the_login_opens_it(user: str, database: str, password: str, code: str) -> None:
    """Each attempt is a step with what was presented, and another one ends the connection."""
    steps = feed(
        PostgresSession(DATABASE, 7, 9),
        startup(user, database),
        wire.message("p", wire.text(password)),
    )
    assert codes(steps) == [code]
    assert steps[-1].close
    presented = steps[-1].presented
    assert presented is not None
    assert (presented.user, presented.credential) == (user, wire.text(password))
    assert presented.ok is (code in {"3D000", "42501"})


def test_the_beginning_has_its_forms() -> None:
    """No encryption; a newer protocol is negotiated; a stranger one, and a query before the login,
    are refused."""
    assert [
        step.reply
        for step in feed(PostgresSession(DATABASE, 7, 9), struct.pack("!II", 8, wire.SSL_REQUEST))
    ] == [b"N"]
    assert [
        kind
        for kind, _ in messages(feed(PostgresSession(DATABASE, 7, 9), startup(code=(3 << 16) + 2)))
    ] == ["v", "R"]
    assert codes(feed(PostgresSession(DATABASE, 7, 9), startup(code=2 << 16))) == ["0A000"]
    assert codes(feed(PostgresSession(DATABASE, 7, 9), startup(user=""))) == ["28000"]
    assert codes(feed(PostgresSession(DATABASE, 7, 9), startup(), query("select 1"))) == ["08P01"]


def test_each_query_is_refused_and_the_next_one_read() -> None:
    """Simple ones and prepared ones, once until the next sync; each message is a step of its own, as
    it was sent."""
    simple = [query("select * from customers"), query(""), query("drop table customers")]
    steps = feed(session := inside(), *simple)
    assert codes(steps) == ["42501"] * 3
    assert "".join(kind for kind, _ in messages(steps)) == "EZEZEZ"
    assert [(step.name, step.raw) for step in steps] == [("query", raw) for raw in simple]
    prepared = [wire.message(kind, b"\0select 1\0\0\0") for kind in "PBDE"]
    for _ in range(2):
        steps = feed(session, *prepared, wire.message("S"))
        assert "".join(kind for kind, _ in messages(steps)) == "EZ"
        assert [step.name for step in steps] == ["parse", "bind", "describe", "execute", "sync"]
    assert feed(session, wire.message("X"))[-1].close


@given(st.lists(st.tuples(st.sampled_from("QPBDECSHXdcfp?"), st.binary(max_size=30)), max_size=12))
def test_any_messages_are_answered(sent: list[tuple[str, bytes]]) -> None:
    """Nothing raises."""
    session = inside()
    for kind, body in sent:
        messages(feed(session, wire.message(kind, body)))

"""A hot standby, message by message."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.stand_ins.conversation import Step
from belljar.network.stand_ins.postgres import MAX_KEPT_CHARS, Database, PostgresSession, wire
from belljar.network.stand_ins.postgres.sql import Table

DATABASE = Database(
    user="app",
    password="s3cret-s3cret",
    name="crm",
    tables={
        "customers": Table(
            columns=(("id", "integer"), ("name", "text")), rows=(("1", "Anna"), ("2", "Ben"))
        )
    },
)


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


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("select * from customers", "TDDCZ"),
        ("select 1; select 2", "TDCTDCZ"),
        ("", "IZ"),
        ("table customers", "TDDCZ"),
        ("show server_version", "TDCZ"),
        ("begin", "CZ"),
        ("select * from nothing", "EZ"),
        ("select 1; drop table customers; select 2", "EZ"),
    ],
)
def test_a_query_is_answered(text: str, kinds: str) -> None:
    """And then the server is ready again."""
    assert "".join(kind for kind, _ in messages(feed(inside(), query(text)))) == kinds


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("insert into customers values (3, 'x')", "25006"),
        ("drop table customers", "25006"),
        ("copy customers to stdout", "40001"),
        ("show nothing", "42704"),
        ("gibberish", "42601"),
        ("select pg_sleep(1)", "40001"),
        ("select relname from pg_catalog.pg_class", "40001"),
    ],
)
def test_what_a_standby_refuses(text: str, code: str) -> None:
    """With the code that it has."""
    assert codes(feed(inside(), query(text))) == [code]


def test_an_error_aborts_its_transaction() -> None:
    """Until it is rolled back."""
    session = inside()
    steps = feed(
        session,
        query("begin"),
        query("select x"),
        query("select 1"),
        query("rollback"),
        query("select 1"),
    )
    assert codes(steps) == ["42703", "25P02"]
    assert [body for kind, body in messages(steps) if kind == "Z"] == [b"T", b"E", b"E", b"I", b"I"]


def extended(text: str, *values: bytes) -> list[bytes]:
    """Parse, Bind, Describe, Execute, Sync."""
    bound = b"".join(struct.pack("!i", len(value)) + value for value in values)
    return [
        wire.message("P", b"s\0" + wire.text(text) + b"\0\0"),
        wire.message("D", b"Ss\0"),
        wire.message("B", b"\0s\0" + struct.pack("!HH", 0, len(values)) + bound + b"\0\0"),
        wire.message("E", b"\0\0\0\0\0"),
        wire.message("S"),
    ]


def test_a_prepared_query_takes_parameters() -> None:
    """As drivers send them; an error is answered once, and the next sync begins anew."""
    session = inside()
    steps = feed(session, *extended("select name from customers where id = $1", b"2"))
    assert "".join(kind for kind, _ in messages(steps)) == "1tT2DCZ"
    assert dict(messages(steps))["D"] == struct.pack("!hi", 1, 3) + b"Ben"
    assert codes(feed(session, *extended("select nothing"))) == ["42703"]
    assert codes(feed(session, *extended("select 1"))) == []


def test_numbers_may_go_both_ways_in_binary() -> None:
    """As some drivers send and want them; text in binary is text."""
    parse = wire.message(
        "P",
        b"\0"
        + wire.text("select id, name from customers where id = $1")
        + struct.pack("!HI", 1, 21),
    )
    bind = struct.pack("!HHHi", 1, 1, 1, 2) + struct.pack("!h", 2) + struct.pack("!HH", 1, 1)
    steps = feed(
        inside(),
        parse,
        wire.message("B", b"\0\0" + bind),
        wire.message("D", b"P\0"),
        wire.message("E", b"\0" * 5),
    )
    assert [kind for kind, _ in messages(steps)] == list("12TDC")
    assert (
        dict(messages(steps))["D"] == struct.pack("!hii", 2, 4, 2) + struct.pack("!i", 3) + b"Ben"
    )


def test_what_is_prepared_is_bounded() -> None:
    """However many names a client gives."""
    session = inside()
    message = [
        wire.message("P", b"%d\0select '%s'\0\0\0" % (at, b"x" * 10_000)) for at in range(20)
    ]
    refused = [codes([*feed(session, each), *feed(session, wire.message("S"))]) for each in message]
    assert refused.count([]) == MAX_KEPT_CHARS // 10_200
    assert refused[-1] == ["53200"]


@given(st.lists(st.tuples(st.sampled_from("QPBDECSHXdcfp?"), st.binary(max_size=30)), max_size=12))
def test_any_messages_are_answered(sent: list[tuple[str, bytes]]) -> None:
    """Nothing raises."""
    session = inside()
    for kind, body in sent:
        messages(feed(session, wire.message(kind, body)))

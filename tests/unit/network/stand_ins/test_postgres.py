"""A decoy PostgreSQL: messages, logins and refusals, and a real client."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.registries import Ledger, served_service

from belljar.network.stand_ins import postgres as wire
from belljar.network.stand_ins.conversation import ServiceStep
from belljar.network.stand_ins.postgres import PostgresSession, make
from belljar.policy.guarding import DecoyKind
from belljar.policy.model import DecoySpec
from belljar.signals.decoys import KEY_BYTES, mint_service

PSQL = shutil.which("psql")
PASSWORD = "s3cret-s3cret"
DATABASE = {"user": "app", "password": PASSWORD, "database": "crm"}


def startup(user: str = "app", database: str = "crm", code: int = 3 << 16) -> bytes:
    words = b"".join(map(wire.text, ("user", user, "database", database)))
    body = struct.pack("!I", code) + words + b"\0"
    return struct.pack("!i", len(body) + 4) + body


def messages(steps: list[ServiceStep]) -> list[tuple[str, bytes]]:
    return list(_read(b"".join(step.reply for step in steps)))


def _read(data: bytes) -> Iterator[tuple[str, bytes]]:
    while data:
        (length,) = struct.unpack_from("!i", data, 1)
        yield chr(data[0]), data[5 : 1 + length]
        data = data[1 + length :]


def codes(steps: list[ServiceStep]) -> list[str]:
    return [
        next(field[1:].decode() for field in body.split(b"\0") if field.startswith(b"C"))
        for kind, body in messages(steps)
        if kind == "E"
    ]


def feed(session: PostgresSession, *messages: bytes) -> list[ServiceStep]:
    return list(session.feed(b"".join(messages)))


def inside() -> PostgresSession:
    session = PostgresSession(DATABASE, bytes(8))
    steps = feed(session, startup(), wire.message("p", wire.text(PASSWORD)))
    assert messages(steps)[-1] == ("Z", b"I")
    return session


def query(text: str) -> bytes:
    return wire.message("Q", wire.text(text))


@pytest.mark.promise("5.6")
@pytest.mark.parametrize(
    ("user", "database", "password", "code"),
    [
        ("app", "crm", "guess", "28P01"),
        ("postgres", "crm", PASSWORD, "28P01"),
        ("app", "other", PASSWORD, "3D000"),
        ("app", "crm", "", "28P01"),
    ],
)
def test_only_the_login_opens_it(user: str, database: str, password: str, code: str) -> None:
    """Each attempt is a step with what was presented, and another one ends the connection."""
    sent = startup(user, database), wire.message("p", wire.text(password))
    steps = feed(PostgresSession(DATABASE, bytes(8)), *sent)
    assert codes(steps) == [code]
    assert steps[-1].close
    presented = steps[-1].presented
    assert presented is not None
    assert (presented.user, presented.credential) == (user, wire.text(password))
    assert presented.ok is (code == "3D000")


@pytest.mark.promise("5.6")
def test_each_query_is_refused_and_the_next_one_read() -> None:
    """Simple ones and prepared ones, once until the next sync; each is a step, as it was sent."""
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
    assert codes(feed(session, prepared[0], query("select 1"))) == ["42501"]
    assert codes(feed(session, wire.message("S"), query("select 1"))) == ["42501"]
    assert feed(session, wire.message("X"))[-1].close


@pytest.mark.promise("5.6")
@given(st.binary(max_size=300), st.booleans(), st.integers(1, 50))
def test_any_bytes_end_in_messages_or_a_problem(data: bytes, begun: bool, size: int) -> None:
    """Nothing raises, no byte is lost, and a problem ends the connection."""
    session, steps = inside() if begun else PostgresSession(DATABASE, bytes(8)), list[ServiceStep]()
    for at in range(0, len(data), size):
        steps += session.feed(data[at : at + size])
        if steps and steps[-1].close:
            break
    assert data.startswith(b"".join(step.raw for step in steps) + session.rest)


@pytest.mark.parametrize("length", [-1, 3, wire.MAX_MESSAGE_BYTES + 1])
@pytest.mark.parametrize("begun", [True, False])
def test_a_length_beyond_its_bound_is_a_problem_at_once(length: int, begun: bool) -> None:
    """Before a byte of its body is held."""
    session = inside() if begun else PostgresSession(DATABASE, bytes(8))
    (step,) = session.feed(b"Q" * begun + struct.pack("!i", length) + b"more")
    assert codes([step]) == ["08P01"]
    assert step.close
    assert session.rest == b""


@pytest.mark.promise("5.6")
@pytest.mark.skipif(PSQL is None, reason="psql (Debian: postgresql-client) is not installed")
def test_the_real_client_logs_in() -> None:
    """psql logs in with the URL of its file, and is refused what it asks."""
    spec = DecoySpec.model_construct(id="crm", kind=DecoyKind.POSTGRES, place="127.0.0.1")
    service, ledger = mint_service(b"k" * KEY_BYTES, "range", spec), Ledger()
    with served_service(make, service.settings, ledger) as port:
        assert service.login is not None
        url = service.login.url.replace(":5432", f":{port}")

        def psql(address: str, command: str) -> subprocess.CompletedProcess[str]:
            argv = [str(PSQL), "-X", "-w", "-A", "-t", "-c", command, address]
            return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)

        for asked in (r"\dt", "select count(*) from customers where card like '9999%'"):
            assert "permission denied" in psql(url, asked).stderr
        wrong = psql(url.replace(service.settings["password"], "guess"), "select 1")
        assert "password authentication failed" in wrong.stderr
    told = zip(ledger.attempts, ledger.bodies, strict=True)
    logins = [(each["ok"], sent.content) for each, [sent] in told if each["what"] == "login"]
    password = service.settings["password"].encode() + b"\0"
    assert logins == [(True, password), (True, password), (False, b"guess\0")]
    assert any(b"like '9999%'" in bodies[0].content for bodies in ledger.bodies)

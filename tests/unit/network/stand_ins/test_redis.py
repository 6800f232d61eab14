"""A decoy Redis: bytes to commands, logins and refusals, and a real client."""

from __future__ import annotations

import shutil
import socket
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.registries import Ledger, served_service

from belljar.network.stand_ins.conversation import ServiceStep
from belljar.network.stand_ins.redis import MAX_COMMAND_BYTES, RedisSession, make
from belljar.policy.guarding import DecoyKind
from belljar.policy.model import DecoySpec
from belljar.signals.decoys import KEY_BYTES, Minted, mint_service

CLI = shutil.which("redis-cli")
PASSWORD = b"s3cret-s3cret"


@pytest.fixture
def service() -> Minted:
    spec = DecoySpec.model_construct(id="cache", kind=DecoyKind.REDIS, place="cache.example")
    return mint_service(b"k" * KEY_BYTES, "range", spec)


def resp(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def say(session: RedisSession, *words: bytes) -> ServiceStep:
    (step,) = session.feed(resp(*words))
    assert step.raw == resp(*words)
    return step


@pytest.mark.promise("5.6")
def test_only_the_password_opens_it() -> None:
    """Each attempt is a step of its own with all that was presented."""
    session = RedisSession(PASSWORD)
    assert say(session, b"GET", b"key").reply == b"-NOAUTH Authentication required.\r\n"
    assert say(session, b"HELLO", b"3").reply.startswith(b"-NOPROTO ")
    assert say(session, b"AUTH").presented is None
    for words in ([b"guess"], [b"admin", PASSWORD], [b""]):
        wrong = say(session, b"AUTH", *words)
        assert wrong.reply.startswith(b"-WRONGPASS ")
        assert wrong.presented is not None
        assert (wrong.presented.credential, wrong.presented.ok) == (b" ".join(words), False)
    assert say(session, b"GET", b"key").reply.startswith(b"-NOAUTH")
    right = say(session, b"auth", b"default", PASSWORD)
    assert right.presented is not None
    assert right.presented.ok
    for name in (b"GET", b"KEYS", b"SET", b"CONFIG", b"EVAL", b"nonsense", b"\xff\r\n"):
        assert say(session, name, b"*").reply.startswith(b"-NOPERM ")
    assert say(session, b"QUIT").close


@pytest.mark.promise("5.6")
@given(
    st.lists(
        st.sampled_from([b"*", b"$", b"-", b"1", b"3", b"\r\n", b"get"]) | st.binary(max_size=9)
    ),
    st.integers(1, 50),
)
def test_any_bytes_end_in_commands_or_a_problem(parts: list[bytes], size: int) -> None:
    """Nothing raises, no byte is lost, and a problem ends the connection."""
    data, session, steps = b"".join(parts), RedisSession(PASSWORD), list[ServiceStep]()
    for at in range(0, len(data), size):
        steps += session.feed(data[at : at + size])
        if steps and steps[-1].close:
            break
    assert data.startswith(b"".join(step.raw for step in steps) + session.rest)
    assert not any(step.close for step in steps[:-1])


@pytest.mark.promise("5.6")
@pytest.mark.parametrize(
    "begin",
    [
        b"*2\r\n$70000\r\n", b"*9999\r\n", b"*1\r\n$-1\r\n", b"*1\r\n:1\r\n", b"*" + b"1" * 40,
        b"x" * MAX_COMMAND_BYTES,
    ],
)  # fmt: skip
def test_a_command_beyond_its_bound_is_refused_at_once(begin: bytes) -> None:
    """Before its arguments are held; all that came is on record."""
    (step,) = RedisSession(PASSWORD).feed(begin)
    assert step.close
    assert step.raw == begin
    assert step.reply.startswith(b"-ERR Protocol error: ")


@pytest.mark.promise("5.6")
def test_all_that_comes_is_on_record(service: Minted) -> None:
    """Each login by itself, and its words among no commands; commands together; what broke off."""
    password, ledger = service.settings["password"].encode(), Ledger()
    sent = b"PING\r\nAUTH guess\r\nAUTH %s\r\nDBSIZE\r\nGET x\r\n*1\r\n$9\r\nhal" % password
    with (
        served_service(make, service.settings, ledger) as port,
        socket.create_connection(("127.0.0.1", port), timeout=30) as client,
    ):
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        replies = b"".join(iter(lambda: client.recv(65536), b""))
    assert [line[:3] for line in replies.splitlines()] == [b"-NO", b"-WR", b"+OK", b"-NO", b"-NO"]
    assert [(event["what"], event["operation"], event.get("ok")) for event in ledger.attempts] == [
        ("command", "redis.command", None),
        ("login", "redis.auth", False),
        ("login", "redis.auth", True),
        ("command", "redis.command", None),
        ("command", "redis.command", None),
    ]
    bodies = [body.content for [body] in ledger.bodies]
    assert bodies == [b"PING\r\n", b"guess", password, b"DBSIZE\r\nGET x\r\n", b"*1\r\n$9\r\nhal"]
    assert ledger.attempts[3]["names"] == ["dbsize", "get"]


@pytest.mark.promise("5.6")
@pytest.mark.skipif(CLI is None, reason="redis-cli (Debian: redis-tools) is not installed")
def test_the_real_client_logs_in(service: Minted) -> None:
    """redis-cli logs in, and is refused what it asks."""
    ledger = Ledger()
    with served_service(make, service.settings, ledger) as port:

        def cli(*words: str) -> str:
            argv = [str(CLI), "-p", str(port), *words]
            return subprocess.run(
                argv, check=True, capture_output=True, text=True, timeout=60
            ).stdout

        assert "NOAUTH" in cli("DBSIZE")
        password = ["--no-auth-warning", "-a", service.settings["password"]]
        assert cli(*password, "PING") == "PONG\n"
        assert "NOPERM" in cli(*password, "HGETALL", "customer:1")
    assert any(b"customer:1" in body.content for [body] in ledger.bodies)

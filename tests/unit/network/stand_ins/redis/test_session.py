"""A read-only replica, command by command."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.stand_ins.conversation import Step
from belljar.network.stand_ins.redis import MAX_GLOBS, Keyspace, RedisSession
from belljar.network.stand_ins.redis.wire import render

SPACE = Keyspace(
    password=b"s3cret-s3cret",
    strings={b"config:key": b"sk-1"},
    hashes={b"customer:%d" % number: {b"name": b"Anna", b"card": b"9999"} for number in (1, 2)},
    port=6379,
    run_id="ab" * 20,
    started_s=0.0,
    clock=lambda: 172_800.0,
)


def say(session: RedisSession, *words: bytes) -> Step:
    """One command's step."""
    (step,) = session.feed(render(words))
    return step


def inside() -> RedisSession:
    """Logged in."""
    session = RedisSession(SPACE)
    assert say(session, b"AUTH", SPACE.password).reply == b"+OK\r\n"
    return session


def test_only_the_password_opens_it() -> None:
    """Before, replies are those of real servers before a login; each attempt is a step of
    its own with all that was presented."""
    session = RedisSession(SPACE)
    assert say(session, b"GET", b"config:key").reply == b"-NOAUTH Authentication required.\r\n"
    assert say(session, b"nonsense", b"x").reply.startswith(
        b"-ERR unknown command 'nonsense', with args"
    )
    for words in ([b"guess"], [b"admin", SPACE.password], [b""]):
        wrong = say(session, b"AUTH", *words)
        assert wrong.reply.startswith(b"-WRONGPASS ")
        assert wrong.presented is not None
        assert (wrong.presented.credential, wrong.presented.ok) == (b" ".join(words), False)
    right = say(session, b"auth", b"default", SPACE.password)
    assert right.presented is not None
    assert right.presented.ok
    assert say(session, b"GET", b"config:key").reply == b"$4\r\nsk-1\r\n"


def test_hello_logs_in_and_chooses_a_version() -> None:
    """Maps are maps in RESP 3."""
    session = RedisSession(SPACE)
    assert say(session, b"HELLO", b"3").reply.startswith(b"-NOAUTH ")
    assert say(session, b"HELLO", b"4").reply.startswith(b"-NOPROTO ")
    step = say(session, b"HELLO", b"3", b"AUTH", b"default", SPACE.password)
    assert step.presented is not None
    assert step.reply.startswith(b"%7\r\n")
    assert say(session, b"HGETALL", b"customer:1").reply.startswith(b"%2\r\n")


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (b"PING", b"+PONG\r\n"),
        (b"DBSIZE", b":3\r\n"),
        (b"KEYS customer:*", b"*2\r\n$10\r\ncustomer:1\r\n$10\r\ncustomer:2\r\n"),
        (b"SCAN 0 COUNT 1", b"*2\r\n$1\r\n1\r\n*1\r\n$10\r\nconfig:key\r\n"),
        (b"SCAN 1 MATCH *:2 TYPE hash", b"*2\r\n$1\r\n0\r\n*1\r\n$10\r\ncustomer:2\r\n"),
        (b"SCAN x", b"-ERR invalid cursor\r\n"),
        (b"TYPE customer:1", b"+hash\r\n"),
        (b"TTL customer:1", b":-1\r\n"),
        (b"TTL none", b":-2\r\n"),
        (b"EXISTS config:key none", b":1\r\n"),
        (b"GET none", b"$-1\r\n"),
        (
            b"GET customer:1",
            b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
        ),
        (b"HGET customer:1 card", b"$4\r\n9999\r\n"),
        (b"HGETALL none", b"*0\r\n"),
        (b"CONFIG GET port", b"*2\r\n$4\r\nport\r\n$4\r\n6379\r\n"),
        (b"SELECT 16", b"-ERR DB index is out of range\r\n"),
        (b"GET", b"-ERR wrong number of arguments for 'get' command\r\n"),
        (b"SET a b", b"-READONLY You can't write against a read only replica.\r\n"),
        (b"FLUSHALL", b"-READONLY You can't write against a read only replica.\r\n"),
    ],
)
def test_a_command_is_answered_as_the_real_server_does(command: bytes, reply: bytes) -> None:
    """Inline, as a person would type it."""
    (step,) = inside().feed(command + b"\r\n")
    assert step.reply == reply
    assert step.raw == command + b"\r\n"


def test_other_databases_are_empty() -> None:
    """As most are."""
    session = inside()
    say(session, b"SELECT", b"1")
    assert say(session, b"KEYS", b"*").reply == b"*0\r\n"
    assert say(session, b"GET", b"config:key").reply == b"$-1\r\n"


def test_info_and_the_end() -> None:
    """Sections by name; after QUIT the connection is closed."""
    session = inside()
    assert b"uptime_in_days:2\r\n" in say(session, b"INFO").reply
    assert b"redis_version" not in say(session, b"INFO", b"keyspace").reply
    assert say(session, b"QUIT").close


names = st.sampled_from(
    [b"scan", b"KEYS", b"config", b"hello", b"auth", b"client", b"select", b"hgetall", b"info"]
)
arguments = st.sampled_from(
    [b"get", b"0", b"-1", b"match", b"[a-", b"[z-a]", b"*" * 300, b"count", b"auth", b"docs"]
)


@given(
    st.booleans(),
    st.lists(
        st.tuples(names, st.lists(arguments | st.binary(max_size=20), max_size=5)), max_size=5
    ),
)
def test_any_arguments_are_answered(
    is_inside: bool, commands: list[tuple[bytes, list[bytes]]]
) -> None:
    """Nothing raises, and each gets a reply."""
    session = inside() if is_inside else RedisSession(SPACE)
    for name, words in commands:
        assert say(session, name, *words).reply.endswith(b"\r\n")


def test_config_get_looks_for_a_bounded_number_of_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many patterns one command has; plain names and the first patterns are answered."""
    matched: set[str | bytes] = set()

    def match(name: bytes, pattern: bytes) -> bool:
        matched.add(pattern)
        return fnmatchcase(name, pattern)

    monkeypatch.setattr("belljar.network.stand_ins.redis.fnmatchcase", match)
    patterns = [b"x%d*" % number for number in range(900)]
    reply = say(inside(), b"CONFIG", b"GET", b"maxmemory*", *patterns, b"DIR", b"port").reply
    for name in (b"maxmemory-policy", b"dir", b"port"):
        assert b"\r\n%s\r\n" % name in reply
    assert b"dbfilename" not in reply
    assert len(matched) <= MAX_GLOBS

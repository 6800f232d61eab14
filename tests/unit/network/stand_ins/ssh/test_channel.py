"""One session: commands, shells, windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.stand_ins.ssh.shell import MAX_PENDING_BYTES, Channel, Host
from belljar.network.stand_ins.ssh.wire import Fields, Malformed, number, text

HOST = Host(
    name="bastion.corp.internal",
    user="deploy",
    files={"/home/deploy/a": "one\n", "/home/deploy/large": "x" * 200_000},
    changed_s=1e9,
)
ADJUST, DATA, EXTENDED, EOF, CLOSE, REQUEST, SUCCESS, FAILURE = range(93, 101)


def made(window: int = 1 << 20) -> Channel:
    """One that waits for a request."""
    return Channel(HOST, 7, window, 1 << 15)


def ask(channel: Channel, name: bytes, more: bytes = b"") -> list[bytes]:
    """A request's answers."""
    return list(channel.take(REQUEST, Fields(text(name) + b"\1" + more)).payloads)


def kinds(payloads: list[bytes]) -> list[int]:
    """Of messages."""
    return [payload[0] for payload in payloads]


def shown(payloads: list[bytes]) -> bytes:
    """What the client's user sees."""
    return b"".join(Fields(payload[5:]).text() for payload in payloads if payload[0] == DATA)


def typed(channel: Channel, data: bytes) -> list[bytes]:
    """Input's answers."""
    return list(channel.take(DATA, Fields(text(data))).payloads)


def test_a_command_ends_with_its_status() -> None:
    """Output, errors apart, end, status, close; the command is what is on record. A second is
    none."""
    channel = made()
    reply = channel.take(REQUEST, Fields(text(b"exec") + b"\1" + text(b"cat a b")))
    assert reply.data == b"cat a b"
    assert kinds(list(reply.payloads)) == [SUCCESS, DATA, EXTENDED, EOF, REQUEST, CLOSE]
    assert reply.payloads[4].endswith(number(1))
    assert kinds(ask(channel, b"shell")) == [FAILURE]
    assert channel.take(CLOSE, Fields(b"")).payloads == ()
    assert channel.is_closed


def test_a_terminal_echoes_and_edits() -> None:
    """Rubout takes back, control-C begins anew, control-D leaves; an arrow is no text."""
    channel = made()
    ask(channel, b"pty-req")
    assert b"deploy@bastion:~$ " in shown(ask(channel, b"shell"))
    assert b"\r\n/home/deploy\r\n" in shown(typed(channel, b"pwx\x7f\x1b[Dd\r"))
    assert b"^C\r\n" in shown(typed(channel, b"whoami\x03"))
    assert kinds(typed(channel, b"\x04"))[-3:] == [EOF, REQUEST, CLOSE]


def test_input_without_a_terminal_is_a_script() -> None:
    """Its last line needs no end."""
    channel = made()
    ask(channel, b"shell")
    assert shown(typed(channel, b"pwd\nwho")) == b"/home/deploy\n"
    assert kinds(reply := list(channel.take(EOF, Fields(b"")).payloads)) == [
        EXTENDED,
        EOF,
        REQUEST,
        CLOSE,
    ]
    assert b"who: command not found" in reply[0]


def test_no_more_is_sent_than_there_is_room_for() -> None:
    """The rest follows when there is more room, and the end after it."""
    channel = made(window=5)
    assert shown(ask(channel, b"exec", text(b"cat large"))) == b"xxxxx"
    reply = list(channel.take(ADJUST, Fields(number(300_000))).payloads)
    assert len(shown(reply)) == 199_995
    assert kinds(reply)[-1] == CLOSE


def test_no_more_input_is_taken_at_once_than_was_agreed() -> None:
    """Else the gateway would answer one client's lines, and nobody else."""
    channel = made()
    ask(channel, b"shell")
    typed(channel, b"x" * Channel.PACKET_BYTES)
    with pytest.raises(Malformed):
        typed(channel, b"\n" * (Channel.PACKET_BYTES + 1))


def test_output_that_nobody_takes_is_bounded() -> None:
    """Such a session is refused."""
    channel = made(window=0)
    ask(channel, b"shell")
    for _ in range(MAX_PENDING_BYTES // 200_000):
        assert not typed(channel, b"cat large\n")
    with pytest.raises(Malformed):
        typed(channel, b"cat large\n")


@pytest.mark.parametrize(
    "name", [b"subsystem", b"auth-agent-req@openssh.com", b"x11-req", b"anything"]
)
def test_other_requests_fail(name: bytes) -> None:
    """File transfer among them."""
    assert kinds(ask(made(), name, text(b"sftp"))) == [FAILURE]


@given(st.lists(st.tuples(st.integers(ADJUST, REQUEST), st.binary(max_size=40)), max_size=10))
def test_any_messages_are_answered_or_refused(messages: list[tuple[int, bytes]]) -> None:
    """Nothing else is raised."""
    channel = made()
    ask(channel, b"pty-req")
    ask(channel, b"shell")
    for kind, body in messages:
        try:
            channel.take(kind, Fields(text(body) if kind == DATA else body))
        except Malformed:
            return

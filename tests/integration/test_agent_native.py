"""The real agent, spoken to in raw frames: what a client would hide. Native mode, on this host,
without a container.

`tests/contract/` holds what a client sees of it, in the same mode too: a frame out of order or over
its bound is an error there. Here is what the host's client never says.
"""

from __future__ import annotations

import platform
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes import guest as g
from tests.fakes.guest import NOT_STARTED, READY, RESULT, SIGNAL, text
from tests.fakes.raw_host import EXEC, KIB, MIB, Wire, exec_body

import belljar

BIN = Path(belljar.__file__).parent / "_bin"


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Iterator[Wire]:
    """An agent that has said nothing yet."""
    agent = BIN / f"agent-{platform.machine()}"
    if not agent.exists():
        pytest.fail(f"{agent.name} is not built: run `python hatch_build.py`", pytrace=False)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [agent, "--serve", str(theirs.fileno()), *getattr(request, "param", [])],
            pass_fds=[theirs.fileno()],
            env={},
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        try:
            yield Wire(ours)
        finally:
            ours.close()
            process.wait(timeout=60)


@pytest.fixture
def wire(fresh: Wire) -> Wire:
    """An agent that is ready for operations."""
    fresh.expect(READY)
    fresh.renew()
    return fresh


# ---- the program


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_program(architecture: str) -> None:
    """At most 105 kB, static, for its machine, and with no name of ours in it."""
    program = (BIN / f"agent-{architecture}").read_bytes()
    assert len(program) <= 106_000
    assert struct.unpack_from("<H", program, 18)[0] == {"x86_64": 62, "aarch64": 183}[architecture]
    assert b"/ld-" not in program
    assert not [
        word
        for word in (b"belljar", b"Belljar", b"sandbox", str(Path.home()).encode() + b"/")
        if word in program
    ]


# ---- the probe program

PROBE = 4


with_probe = pytest.mark.parametrize(
    "fresh", [["--probe", str(BIN / f"probe-{platform.machine()}")]], indirect=True
)


# ---- the connection


def test_conversation_begins(fresh: Wire) -> None:
    """READY, HELLO with its nonce back, g.CONFIG, g.PING, RENEW: each answered once."""
    assert struct.unpack_from("<H", fresh.expect(READY))[0] == 1
    fresh.send(g.HELLO, 0, struct.pack("<H", 1) + bytes(range(16)))
    version, nonce, max_ops, window = struct.unpack("<H16sII", fresh.expect(g.WELCOME))
    assert (version, nonce, window) == (1, bytes(range(16)), 256 * KIB)
    assert max_ops >= 64
    limits = struct.pack("<QQQIQI", MIB, MIB, 100, 10, 0, 0)
    fresh.send(g.CONFIG, 0, limits + text("machine") + struct.pack("<I", 0))
    assert struct.unpack_from("<I", fresh.expect(g.CONFIGURED))[0] == 0
    fresh.send(g.PING, 0, b"12345678")
    assert fresh.expect(g.PONG) == b"12345678"
    # Native: nothing of this host is changed.
    assert struct.unpack_from("<I", fresh.renew())[0] == 0


def test_no_operation_before_renewal(fresh: Wire) -> None:
    """START before RENEW is refused, and nothing runs."""
    fresh.expect(READY)
    ended = fresh.finish(fresh.start(EXEC, exec_body(["true"])))
    assert (ended.types, ended.outcome, ended.stage) == ([RESULT], NOT_STARTED, 9)


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("<IBBHI", 65537, g.PART, 0, 0, 1),
        struct.pack("<IBBHI", 0, g.PING, 1, 0, 0),
        struct.pack("<IBBHI", 0, 0x7F, 0, 0, 0),
        struct.pack("<IBBHI", 1, g.RENEW, 0, 0, 0) + b"x",
    ],
)
def test_nonsense_is_fatal(fresh: Wire, frame: bytes) -> None:
    """A host that can't be understood is told g.FATAL, and the agent ends: it guesses nothing."""
    fresh.expect(READY)
    fresh.sock.sendall(frame)
    fresh.expect(g.FATAL)
    with pytest.raises(EOFError):
        fresh.frame()


# ---- order


@pytest.mark.parametrize(
    ("kind", "flags", "argv", "stage", "errno"),
    [
        (EXEC, 0, ["/nonexistent"], 3, 2),
        (EXEC, PROBE, ["true"], 3, 2),  # an agent that came without one runs nothing in its place
        *(
            (EXEC, 0, body, 9, 22)
            for body in (b"nonsense", exec_body(["true"]) + b"x", [], ["a\0b"])
        ),
        (9, 0, b"", 9, 22),  # there are three kinds of operation
    ],
)
def test_failed_start(
    wire: Wire, kind: int, flags: int, argv: list[str] | bytes, stage: int, errno: int
) -> None:
    """What can't start is one RESULT, with where and why, and the agent goes on."""
    body = argv if isinstance(argv, bytes) else exec_body(argv, flags=flags)
    ended = wire.finish(wire.start(kind, body))
    found = (ended.types, ended.outcome, ended.stage, ended.code)
    assert found == ([RESULT], NOT_STARTED, stage, errno)
    assert wire.run("exit 3").code == 3


def test_what_comes_after_the_result_is_ignored(wire: Wire) -> None:
    """The host can't know yet that an operation has ended."""
    op = wire.start(EXEC, exec_body(["true"], flags=1))
    wire.finish(op)
    late = {g.DATA: b"\0late", g.EOF: b"\0", g.CREDIT: struct.pack("<I", 1), SIGNAL: b"\x09\x01"}
    for kind, payload in late.items():
        wire.send(kind, op, payload)
    assert wire.run("echo on").output[1] == b"on\n"


# ---- many


# ---- confinement that needs no container

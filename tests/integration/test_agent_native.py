"""The real agent, spoken to in raw frames: what a client would hide."""

from __future__ import annotations

import platform
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes import guest as g
from tests.fakes.guest import NOT_STARTED, READY, RESULT, SIGNAL
from tests.fakes.raw_host import EXEC, Wire, exec_body

import belljar

BIN = Path(belljar.__file__).parent / "_bin"


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Iterator[Wire]:
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


with_probe = pytest.mark.parametrize(
    "fresh", [["--probe", str(BIN / f"probe-{platform.machine()}")]], indirect=True
)


# ---- the connection


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


def test_what_comes_after_the_result_is_ignored(wire: Wire) -> None:
    """The host can't know yet that an operation has ended."""
    op = wire.start(EXEC, exec_body(["true"], flags=1))
    wire.finish(op)
    late = {g.DATA: b"\0late", g.EOF: b"\0", g.CREDIT: struct.pack("<I", 1), SIGNAL: b"\x09\x01"}
    for kind, payload in late.items():
        wire.send(kind, op, payload)
    assert wire.run("echo on").output[1] == b"on\n"

"""The real agent, spoken to in raw frames: what a client would hide. Native mode, on this host,
without a container.

`tests/contract/` holds what a client sees of it; here are the orders and bounds of frames that
design/channel.md promises.
"""

from __future__ import annotations

import hashlib
import os
import platform
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.guest import (
    CONFIG,
    CONFIGURED,
    CREDIT,
    DATA,
    EOF,
    EXITED,
    FATAL,
    HELLO,
    IO_FAILED,
    NOT_STARTED,
    PART,
    PING,
    PONG,
    READY,
    RENEW,
    RESIZE,
    RESULT,
    SIGNAL,
    SIGNALED,
    STARTED,
    WELCOME,
    text,
)
from tests.fakes.raw_host import (
    EXEC,
    KIB,
    MIB,
    NO_CAP,
    READ,
    WRITE,
    Ended,
    Wire,
    exec_body,
    read_body,
    write_body,
)

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


@pytest.mark.parametrize(
    "fresh", [["--probe", str(BIN / f"probe-{platform.machine()}")]], indirect=True
)
def test_probe_program(wire: Wire, fresh: Wire) -> None:
    """It runs through a descriptor that it doesn't keep, with the arguments as they are: no path of
    this system is looked at."""
    ended = wire.finish(
        wire.start(EXEC, exec_body(["/no/such/program", "--no-such-probe"], flags=PROBE))
    )
    assert (ended.types[0], ended.outcome) == (STARTED, EXITED)
    assert wire.run("ls /proc/self/fd").output[1].split() == [b"0", b"1", b"2", b"3"]


def test_no_probe_program(wire: Wire) -> None:
    """An agent that came without one says so, and runs nothing else in its place."""
    ended = wire.finish(wire.start(EXEC, exec_body(["true"], flags=PROBE)))
    assert (ended.types, ended.outcome, ended.stage, ended.code) == ([RESULT], NOT_STARTED, 3, 2)


# ---- the connection


def test_conversation_begins(fresh: Wire) -> None:
    """READY, HELLO with its nonce back, CONFIG, PING, RENEW: each answered once."""
    assert struct.unpack_from("<H", fresh.expect(READY))[0] == 1
    fresh.send(HELLO, 0, struct.pack("<H", 1) + bytes(range(16)))
    version, nonce, max_ops, window = struct.unpack("<H16sII", fresh.expect(WELCOME))
    assert (version, nonce, window) == (1, bytes(range(16)), 256 * KIB)
    assert max_ops >= 64
    fresh.send(
        CONFIG,
        0,
        struct.pack("<QQQIQI", MIB, MIB, 100, 10, 0, 0) + text("machine") + struct.pack("<I", 0),
    )
    assert struct.unpack_from("<I", fresh.expect(CONFIGURED))[0] == 0
    fresh.send(PING, 0, b"12345678")
    assert fresh.expect(PONG) == b"12345678"
    assert (
        struct.unpack_from("<I", fresh.renew())[0] == 0
    )  # native: nothing of this host is changed


def test_no_operation_before_renewal(fresh: Wire) -> None:
    """START before RENEW is refused, and nothing runs."""
    fresh.expect(READY)
    ended = fresh.finish(fresh.start(EXEC, exec_body(["true"])))
    assert (ended.types, ended.outcome, ended.stage) == ([RESULT], NOT_STARTED, 9)


@pytest.mark.parametrize(
    "frame",
    [struct.pack("<IBBHI", 65537, PART, 0, 0, 1), struct.pack("<IBBHI", 0, PING, 1, 0, 0), struct.pack("<IBBHI", 0, 0x7F, 0, 0, 0),
     struct.pack("<IBBHI", 1, RENEW, 0, 0, 0) + b"x"],
)  # fmt: skip
def test_nonsense_is_fatal(fresh: Wire, frame: bytes) -> None:
    """A host that can't be understood is told FATAL, and the agent ends: it guesses nothing."""
    fresh.expect(READY)
    fresh.sock.sendall(frame)
    fresh.expect(FATAL)
    with pytest.raises(EOFError):
        fresh.frame()


# ---- order


def test_order_of_an_operation(wire: Wire) -> None:
    """STARTED, then DATA, then both EOF, then RESULT."""
    ended = wire.run("echo out; echo err >&2; exit 7")
    assert ended.types[0] == STARTED
    assert (ended.types[-1], ended.types.count(EOF), ended.types.count(RESULT)) == (RESULT, 2, 1)
    assert (bytes(ended.output[1]), bytes(ended.output[2]), ended.code) == (b"out\n", b"err\n", 7)


@pytest.mark.parametrize(
    ("body", "stage", "errno"),
    [(exec_body(["/nonexistent"]), 3, 2), (exec_body(["/"]), 3, 13), (exec_body(["true"], user="nobody-at-all"), 1, 2),
     (exec_body(["true"], cwd="/nonexistent"), 2, 2), (b"nonsense", 9, 22), (exec_body(["true"]) + b"x", 9, 22), (exec_body([]), 9, 22),
     (exec_body(["a\0b"]), 9, 22)],
)  # fmt: skip
def test_failed_start(wire: Wire, body: bytes, stage: int, errno: int) -> None:
    """What can't start is one RESULT, with where and why, and the agent goes on."""
    ended = wire.finish(wire.start(EXEC, body))
    assert (ended.types, ended.outcome, ended.stage, ended.code) == (
        [RESULT],
        NOT_STARTED,
        stage,
        errno,
    )
    assert wire.run("exit 3").code == 3


def test_an_unknown_kind_is_refused(wire: Wire) -> None:
    """There are three kinds of operation."""
    ended = wire.finish(wire.start(9, b""))
    assert (ended.outcome, ended.stage) == (NOT_STARTED, 9)


def test_what_comes_after_the_result_is_ignored(wire: Wire) -> None:
    """The host can't know yet that an operation has ended."""
    op = wire.start(EXEC, exec_body(["true"], flags=1))
    wire.finish(op)
    for kind, payload in [
        (DATA, b"\0late"),
        (EOF, b"\0"),
        (CREDIT, struct.pack("<I", 1)),
        (SIGNAL, b"\x09\x01"),
    ]:
        wire.send(kind, op, payload)
    assert wire.run("echo on").output[1] == b"on\n"


# ---- back-pressure


def test_output_waits_for_credit(wire: Wire) -> None:
    """Without credit exactly the window comes, then nothing, while the channel is still read; with
    credit the rest comes, and all of it."""
    total = 3 * MIB
    op = wire.start(EXEC, exec_body(["head", "-c", str(total), "/dev/zero"]))
    ended = Ended()
    while len(ended.output[1]) < MIB:
        kind, _, payload = wire.frame()
        wire.absorb(ended, kind, payload)
    assert len(ended.output[1]) == MIB
    assert wire.quiet_for(0.3)
    wire.send(PING, 0, b"12345678")
    assert wire.expect(PONG) == b"12345678"
    wire.send(CREDIT, op, struct.pack("<I", total))
    rest = wire.finish(op, credit=False)
    assert len(ended.output[1]) + len(rest.output[1]) == total


def test_output_of_a_process_that_has_ended_is_not_lost(wire: Wire) -> None:
    """What was in the pipe when the main process ended is owed, however long the credit takes to
    come."""
    op = wire.start(
        EXEC, exec_body(["sh", "-c", "head -c 1048576 /dev/zero; printf %060000d 1 & wait; exit 4"])
    )
    ended = Ended()
    while len(ended.output[1]) < MIB:
        wire.absorb(ended, *wire.frame()[::2])
    assert wire.quiet_for(0.6)
    wire.send(CREDIT, op, struct.pack("<I", MIB))
    rest = wire.finish(op, credit=False)
    assert (len(rest.output[1]), rest.code) == (60000, 4)


def test_stdin_is_granted_as_it_is_taken(wire: Wire) -> None:
    """50 MiB through the window: never more than was granted is needed, and all arrives."""
    contents = os.urandom(MIB) * 50
    op = wire.start(EXEC, exec_body(["sha256sum"], flags=1))
    sent, window, ended = 0, 256 * KIB, Ended()
    while sent < len(contents):
        n = min(window, 65535, len(contents) - sent)
        if n:
            wire.send(DATA, op, b"\0" + contents[sent : sent + n])
            sent, window = sent + n, window - n
            continue
        kind, _, payload = wire.frame()
        wire.absorb(ended, kind, payload)
        if kind == CREDIT:
            window += struct.unpack("<I", payload)[0]
        assert window <= 256 * KIB
    wire.send(EOF, op, b"\0")
    assert wire.finish(op).output[1][:64].decode() == hashlib.sha256(contents).hexdigest()


def test_a_stalled_operation_does_not_stall_another(wire: Wire) -> None:
    """One process doesn't read its input, one has no credit left; a third runs."""
    deaf = wire.start(EXEC, exec_body(["sleep", "100"], flags=1))
    for _ in range(4):
        wire.send(DATA, deaf, b"\0" + bytes(65535))
    loud = wire.start(EXEC, exec_body(["cat", "/dev/zero"]))
    got: dict[int, Ended] = {deaf: Ended(), loud: Ended()}
    while len(got[loud].output[1]) < MIB:
        kind, op, payload = wire.frame()
        wire.absorb(got[op], kind, payload)
    third = wire.start(EXEC, exec_body(["echo", "third"]))
    got[third] = Ended()
    while got[third].outcome < 0:
        kind, op, payload = wire.frame()
        wire.absorb(got[op], kind, payload)
    assert got.pop(third).output[1] == b"third\n"
    for op in (deaf, loud):
        wire.send(SIGNAL, op, bytes([signal.SIGKILL, 1]))
    while min(ended.outcome for ended in got.values()) < 0:
        kind, op, payload = wire.frame()
        wire.absorb(got[op], kind, payload)
    assert [(ended.outcome, ended.code, ended.flags) for ended in got.values()] == [
        (SIGNALED, 9, 2)
    ] * 2


@pytest.mark.parametrize("cap", [0, 1, 100_000])
def test_caps(wire: Wire, cap: int) -> None:
    """Exactly the cap comes, the rest is counted, and needs no credit."""
    ended = wire.finish(
        wire.start(EXEC, exec_body(["head", "-c", "5000000", "/dev/zero"], caps=(cap, NO_CAP))),
        credit=False,
    )
    assert (len(ended.output[1]), ended.dropped, ended.flags) == (cap, (5_000_000 - cap, 0), 8)


# ---- many


def test_hundreds_at_once(wire: Wire) -> None:
    """200 operations at once, each with its own output and its own status."""
    ended = {
        wire.start(EXEC, exec_body(["sh", "-c", f"echo {i}; exit {i % 100}"])): Ended()
        for i in range(200)
    }
    while any(one.outcome < 0 for one in ended.values()):
        kind, op, payload = wire.frame()
        wire.absorb(ended[op], kind, payload)
    assert [(bytes(one.output[1]), one.code) for one in ended.values()] == [
        (b"%d\n" % i, i % 100) for i in range(200)
    ]


def test_too_many_are_refused(wire: Wire) -> None:
    """Past its limit the agent says so and keeps those it has."""
    ended = {wire.start(EXEC, exec_body(["sleep", "100"])): Ended() for _ in range(260)}
    refused = 0
    while refused < 4:
        kind, op, payload = wire.frame()
        wire.absorb(ended[op], kind, payload)
        refused += kind == RESULT
    assert {one.code for one in ended.values() if one.outcome == NOT_STARTED} == {11}
    for op in ended:
        wire.send(SIGNAL, op, bytes([signal.SIGKILL, 1]))
    while any(one.outcome < 0 for one in ended.values()):
        kind, op, payload = wire.frame()
        wire.absorb(ended[op], kind, payload)


def test_a_request_of_four_mebibytes(wire: Wire) -> None:
    """The largest request there is reaches the kernel, whose own limit is a result."""
    ended = wire.finish(wire.start(EXEC, exec_body(["true", *["x" * 100_000] * 40])))
    assert (ended.outcome, ended.stage, ended.code) == (NOT_STARTED, 3, 7)


# ---- ends


def test_timeout_kills_children(wire: Wire) -> None:
    """The timeout takes the children with it; RESULT says that it was the timeout."""
    for timeout_ms in (300, 3000, 30_000):  # longer where the machine is slow
        ended = wire.run("sleep 100 & echo $!; wait", timeout_ms=timeout_ms)
        assert (ended.outcome, ended.code, ended.flags) == (SIGNALED, 9, 1)
        if ended.output[1]:
            break
    child = Path(f"/proc/{int(ended.output[1])}/stat")
    deadline = time.monotonic() + 60
    while child.exists() and time.monotonic() < deadline:
        os.sched_yield()
    assert not child.exists()


def test_a_background_child_keeps_its_pipe(wire: Wire, tmp_path: Path) -> None:
    """RESULT doesn't wait for it, and it is not killed by writing later."""
    os.mkfifo(tmp_path / "go")
    script = (
        f"(read word < {tmp_path}/go; head -c 200000 /dev/zero; echo done > {tmp_path}/done) &"
        " echo now"
    )
    began = time.monotonic()
    ended = wire.run(script)
    assert (bytes(ended.output[1]), ended.types.count(EOF)) == (b"now\n", 0)
    assert time.monotonic() - began > 0.2
    (tmp_path / "go").write_text("go\n")
    deadline = time.monotonic() + 60
    while not (tmp_path / "done").exists() and time.monotonic() < deadline:
        os.sched_yield()
    assert (tmp_path / "done").exists()


def test_terminal(wire: Wire) -> None:
    """One stream, a controlling terminal of the size asked for, and a new size is told."""
    op = wire.start(
        EXEC,
        exec_body(
            [
                "sh",
                "-c",
                (
                    "stty -echo size; trap 'stty size; exit' WINCH; echo go; while :; do sleep"
                    " 0.05; done"
                ),
            ],
            flags=3,
        ),
    )
    ended = Ended()
    while b"go" not in ended.output[1]:
        wire.absorb(ended, *wire.frame()[::2])
    wire.send(RESIZE, op, struct.pack("<HH", 50, 132))
    rest = wire.finish(op)
    assert ended.output[1].split() == [b"24", b"80", b"go"]
    assert bytes(rest.output[1]).split() == [b"50", b"132"]
    assert not rest.output[2]


# ---- confinement that needs no container


def test_filter_and_privileges(wire: Wire) -> None:
    """Even here a command runs under the filter and can gain nothing."""
    status = (
        wire.run("grep -E '^(NoNewPrivs|Seccomp|CapInh|CapAmb):' /proc/self/status")
        .output[1]
        .decode()
    )
    values = dict(line.split(":\t") for line in status.splitlines())
    assert (values["NoNewPrivs"], values["Seccomp"]) == ("1", "2")
    assert int(values["CapInh"], 16) == int(values["CapAmb"], 16) == 0
    assert wire.run("unshare -U true").code != 0


# ---- files


def test_write_is_atomic(wire: Wire, tmp_path: Path) -> None:
    """Until all is written the old contents stand; an end on the way changes nothing and leaves
    nothing."""
    target = tmp_path / "file"
    target.write_text("old")
    op = wire.start(WRITE, write_body(target))
    wire.send(DATA, op, b"\0new")
    assert wire.expect(STARTED) == bytes(8)
    assert target.read_text() == "old"
    wire.send(SIGNAL, op, bytes([signal.SIGKILL, 1]))
    assert wire.finish(op).outcome == SIGNALED
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]
    assert wire.write(write_body(target), b"new").outcome == EXITED
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "new")]


def test_write_through_a_link(wire: Wire, tmp_path: Path) -> None:
    """The link stays, its target is replaced; a link to nothing makes the target; a loop is an
    error."""
    (tmp_path / "link").symlink_to("sub/file")
    (tmp_path / "sub").mkdir()
    for contents in (b"one", b"two"):
        assert wire.write(write_body(tmp_path / "link"), contents).outcome == EXITED
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "sub/file").read_bytes() == contents
    (tmp_path / "loop").symlink_to("loop")
    ended = wire.write(write_body(tmp_path / "loop"), b"x")
    assert (ended.outcome, ended.stage, ended.code) == (IO_FAILED, 5, 40)


def test_write_modes(wire: Wire, tmp_path: Path) -> None:
    """A new file has 0644, an existing one keeps its own, and a mode that is asked for is taken
    literally."""
    target = tmp_path / "deep/er/file"
    for mode, expected in [(0xFFFFFFFF, 0o644), (0o751, 0o751), (0xFFFFFFFF, 0o751)]:
        assert wire.write(write_body(target, mode=mode), b"").outcome == EXITED
        assert target.stat().st_mode & 0o7777 == expected
    assert wire.write(write_body(target, flags=1), b"more").outcome == EXITED
    assert target.read_bytes() == b"more"
    ended = wire.write(write_body(tmp_path / "no/file", flags=2), b"")
    assert (ended.outcome, ended.stage, ended.code) == (IO_FAILED, 5, 2)


@pytest.mark.parametrize("kind", [READ, WRITE])
def test_special_files(wire: Wire, tmp_path: Path, kind: int) -> None:
    """FIFOs, sockets and devices are refused at once, directories by their own name."""
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        body = read_body if kind == READ else write_body
        codes = {}
        for path in (tmp_path / "fifo", tmp_path / "socket", Path("/dev/zero"), tmp_path):
            op = wire.start(kind, body(path))
            ended = wire.finish(op)
            assert (ended.outcome, ended.stage) == (IO_FAILED, 5)
            codes[path.name] = ended.code
    assert codes == {"fifo": 95, "socket": 95, "zero": 95, tmp_path.name: 21}


def test_read_tells_the_size(wire: Wire, tmp_path: Path) -> None:
    """STARTED has the size; a file past the limit is EFBIG without its bytes; one that has no size
    is cut one byte past the limit."""
    (tmp_path / "file").write_bytes(bytes(range(256)) * 4000)
    ended = wire.finish(wire.start(READ, read_body(tmp_path / "file")))
    assert (ended.info, bytes(ended.output[1]), ended.outcome) == (
        1_024_000,
        bytes(range(256)) * 4000,
        EXITED,
    )
    ended = wire.finish(wire.start(READ, read_body(tmp_path / "file", max_bytes=1000)))
    assert (ended.info, len(ended.output[1]), ended.outcome, ended.code) == (
        1_024_000,
        0,
        IO_FAILED,
        27,
    )
    ended = wire.finish(wire.start(READ, read_body(Path("/proc/self/status"), max_bytes=10)))
    assert (ended.info, len(ended.output[1]), ended.code) == (0, 11, 27)

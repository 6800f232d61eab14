"""What every guest agent must do over its channel, whatever carries it. Runs against the real agent.

The fixture `agent_socket` decides what carries it: here the agent's native mode on a socket pair, on this host without a container. A tier that wants
the same suite gives its own `agent_socket`; only the last test, which kills the agent, knows of the host.
"""

from __future__ import annotations

import hashlib
import os
import platform
import signal
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

import belljar
from belljar.channel import ExecRequest, ExecStatus, FileTooLarge, GuestClient, PtySize, RunningExec, Stage, Stream
from belljar.errors import CellError

pytestmark = pytest.mark.anyio
MIB = 1 << 20
LONGEST_TEST_S = 150
AGENT = Path(belljar.__file__).parent / "_bin" / f"agent-{platform.machine()}"


@pytest.fixture
def agent_process() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The agent in native mode and the host's end of its channel."""
    if not AGENT.exists():
        pytest.fail(f"{AGENT.name} is not built: run `python hatch_build.py`", pytrace=False)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen([AGENT, "--serve", str(theirs.fileno())], pass_fds=[theirs.fileno()], env={})
        theirs.close()
        watchdog = threading.Timer(LONGEST_TEST_S, process.kill)  # a test that would hang fails with a dead cell
        watchdog.start()
        try:
            yield process, ours
        finally:
            watchdog.cancel()
            ours.close()
            process.wait(timeout=10)


@pytest.fixture
def agent_socket(agent_process: tuple[subprocess.Popen[bytes], socket.socket]) -> socket.socket:
    """The host's end of a channel to a real agent that has said READY."""
    return agent_process[1]


@pytest.fixture
async def client(agent_socket: socket.socket) -> AsyncIterator[GuestClient]:
    """A client that has shaken hands and renewed its guest."""
    async with GuestClient.from_socket(agent_socket) as made:
        await made.wait_ready(timeout_s=10)
        await made.hello()
        await renew(made)
        yield made


async def renew(client: GuestClient) -> None:
    """What a clone gets before its first operation."""
    await client.renew(
        realtime_ns=time.time_ns(),
        seed=os.urandom(64),
        machine_id="0123456789abcdef" * 2,
        boot_id="01234567-89ab-cdef-0123-456789abcdef",
        hostname="machine",
    )


def sh(script: str, *args: str, **rest: object) -> ExecRequest:
    """A shell script with arguments, as an exec."""
    return ExecRequest(argv=["sh", "-c", script, "sh", *args], **rest)  # type: ignore[arg-type]


async def is_alive(client: GuestClient, pid: bytes) -> bool:
    """Whether a process of the guest is there and no zombie."""
    look = 'state=$(cut -d" " -f3 "/proc/$1/stat" 2>/dev/null) && [ "$state" != Z ]'
    return (await client.exec(sh(look, pid.decode().strip()))).returncode == 0


@pytest.fixture
async def folder(client: GuestClient) -> AsyncIterator[str]:
    """A directory in the guest that everyone may use; removed afterwards."""
    made = (await client.exec(sh('dir=$(mktemp -d) && chmod 1777 "$dir" && printf %s "$dir"'))).stdout.decode()
    yield made
    await client.exec(ExecRequest(argv=["rm", "-rf", "--", made]))


# ---- commands


async def test_streams_are_separate_and_exact(client: GuestClient) -> None:
    """Standard output and standard error arrive apart, byte by byte as written."""
    outcome = await client.exec(sh("printf 'foo\\nbar\\n'; printf '\\303(\\0' >&2"))
    assert (outcome.status, outcome.code, outcome.stdout, outcome.stderr) == (
        ExecStatus.EXITED,
        0,
        b"foo\nbar\n",
        b"\xc3(\0",
    )
    assert (outcome.stdout_dropped_bytes, outcome.stderr_dropped_bytes, outcome.timed_out) == (0, 0, False)
    assert 0 < outcome.duration_s < 10


async def test_exit_status(client: GuestClient) -> None:
    """The exit status is the program's."""
    assert (await client.exec(sh("exit 70"))).returncode == 70


async def test_death_by_signal(client: GuestClient) -> None:
    """A program that a signal kills is told from one that exits with 128 + n."""
    outcome = await client.exec(sh("kill -TERM $$"))
    assert (outcome.status, outcome.code, outcome.returncode, outcome.timed_out) == (
        ExecStatus.SIGNALED,
        15,
        143,
        False,
    )
    assert (await client.exec(sh("exit 143"))).status is ExecStatus.EXITED


@pytest.mark.parametrize(
    ("request_", "stage", "returncode"),
    [
        (ExecRequest(argv=["no-such-program"]), Stage.EXEC, 127),
        (ExecRequest(argv=["/no/such/program"]), Stage.EXEC, 127),
        (ExecRequest(argv=["/etc/passwd"]), Stage.EXEC, 126),
        (ExecRequest(argv=["/etc"]), Stage.EXEC, 126),
        (ExecRequest(argv=["true"], cwd="/no/such/directory"), Stage.CWD, 127),
        (ExecRequest(argv=["true"], user="nobody-of-that-name"), Stage.USER, None),
    ],
    ids=["not found", "path not found", "not executable", "directory", "cwd", "user"],
)
async def test_what_can_not_start(
    client: GuestClient, request_: ExecRequest, stage: Stage, returncode: int | None
) -> None:
    """A command that can't start is a result that says at which stage and why, never an error."""
    outcome = await client.exec(request_)
    assert (outcome.status, outcome.stage) == (ExecStatus.NOT_STARTED, stage)
    assert returncode is None or outcome.returncode == returncode


async def test_environment(client: GuestClient) -> None:
    """The environment is what was given, and the user's defaults; nothing of the agent's."""
    outcome = await client.exec(
        ExecRequest(argv=["env"], env={"GREETING": "grüß\n$dich", "EMPTY": "", "SHELL": "/mine"})
    )
    text = outcome.stdout.decode()
    assert {"GREETING=grüß", "$dich", "EMPTY=", "SHELL=/mine"} <= set(text.splitlines())
    names = {line.split("=")[0] for line in text.replace("\n$dich", "").splitlines()}
    assert names == {"GREETING", "EMPTY", "SHELL", "HOME", "USER", "LOGNAME", "PATH"}


async def test_work_directory(client: GuestClient, folder: str) -> None:
    """`cwd` is where the command runs."""
    assert (await client.exec(ExecRequest(argv=["pwd"], cwd=folder))).stdout.decode().strip() == folder


@pytest.mark.root
@pytest.mark.parametrize(
    ("user", "expected"), [("nobody", "65534"), ("1234", "1234"), ("1234:4321", "1234"), ("", "0")]
)
async def test_user(client: GuestClient, user: str, expected: str) -> None:
    """A user is a name, a uid or uid:gid; "" is root. No group of the agent's is left."""
    outcome = await client.exec(ExecRequest(argv=["id", "-u"], user=user))
    assert outcome.stdout.decode().strip() == expected
    groups = (await client.exec(ExecRequest(argv=["id", "-G"], user=user))).stdout.split()
    assert user == "" or b"0" not in groups or user == "1234"


async def test_no_descriptor_of_the_agent_is_inherited(client: GuestClient) -> None:
    """A command has standard input, output and error, and nothing else."""
    outcome = await client.exec(sh("ls /proc/self/fd"))
    assert outcome.stdout.split() == [b"0", b"1", b"2", b"3"], "3 is ls's own directory"


async def test_argv_of_one_mebibyte(client: GuestClient) -> None:
    """Sixteen arguments of 64 KiB arrive whole."""
    args = ["x" * 65_536] * 16
    assert (await client.exec(sh('printf %s "$*" | wc -c', *args))).stdout.strip() == str(16 * 65_536 + 15).encode()


async def test_an_argument_beyond_the_kernels_limit_is_a_result(client: GuestClient) -> None:
    """What execve refuses (E2BIG) is a command that could not start."""
    outcome = await client.exec(ExecRequest(argv=["true", "x" * 300_000]))
    assert (outcome.status, outcome.stage) == (ExecStatus.NOT_STARTED, Stage.EXEC)


# ---- streams


async def test_stdin_text_empty_and_none(client: GuestClient) -> None:
    """Input arrives byte by byte; no input is an immediate end."""
    every_byte = bytes(range(256)) * 5
    assert (await client.exec(ExecRequest(argv=["cat"]), input=every_byte)).stdout == every_byte
    assert (await client.exec(ExecRequest(argv=["cat"]), input=b"")).stdout == b""
    assert (await client.exec(ExecRequest(argv=["cat"]))).stdout == b""


async def test_fifty_mebibytes_of_stdin_and_back(client: GuestClient) -> None:
    """50 MiB go in and come out unchanged, both at the same time."""
    content = os.urandom(MIB) * 50
    outcome = await client.exec(ExecRequest(argv=["cat"], max_stdout_bytes=64 * MIB), input=content)
    assert hashlib.sha256(outcome.stdout).digest() == hashlib.sha256(content).digest()


async def test_stdin_from_a_generator(client: GuestClient) -> None:
    """Input may come in pieces of any size."""

    async def pieces() -> AsyncIterator[bytes]:
        for size in (1, 0, 100_000, 300_000, 7):
            yield b"p" * size

    assert (await client.exec(ExecRequest(argv=["wc", "-c"]), input=pieces())).stdout.strip() == b"400008"


@pytest.mark.parametrize("script", ["exit 3", "exec 0<&-; sleep 0.3; exit 3", "head -c 10 >/dev/null; exit 3"])
async def test_a_command_that_does_not_read_its_input(client: GuestClient, script: str) -> None:
    """Input that nobody reads neither hangs nor fails the command."""
    with anyio.fail_after(20):
        assert (await client.exec(sh(script), input=b"x" * (4 * MIB))).returncode == 3


async def test_head_is_kept_and_the_rest_counted(client: GuestClient) -> None:
    """Bytes beyond the cap are dropped in the guest and counted; the command isn't killed by it."""
    outcome = await client.exec(sh("seq 1 300000; seq 1 100 >&2; exit 5", max_stdout_bytes=1000, max_stderr_bytes=10))
    whole = "".join(f"{n}\n" for n in range(1, 300_001)).encode()
    errors = "".join(f"{n}\n" for n in range(1, 101)).encode()
    assert (outcome.stdout, outcome.stderr, outcome.returncode) == (whole[:1000], errors[:10], 5)
    assert (outcome.stdout_dropped_bytes, outcome.stderr_dropped_bytes) == (len(whole) - 1000, len(errors) - 10)
    assert outcome.output_cap_reached


async def test_tail_is_kept_and_the_rest_counted(client: GuestClient) -> None:
    """With `keep="tail"` the end of a stream is returned, and what came before is counted."""
    outcome = await client.exec(sh("seq 1 300000"), keep="tail", keep_bytes=1000)
    whole = "".join(f"{n}\n" for n in range(1, 300_001)).encode()
    assert (outcome.stdout, outcome.stdout_dropped_bytes) == (whole[-1000:], len(whole) - 1000)


async def test_a_slow_consumer_loses_nothing(client: GuestClient) -> None:
    """Output that waits for credit when the command ends still comes, all of it."""
    async with client.open_exec(sh("head -c 1200000 /dev/zero; printf end >&2", max_stdout_bytes=8 * MIB)) as running:
        await anyio.sleep(0.8)  # longer than the agent waits for stragglers
        total = {Stream.STDOUT: 0, Stream.STDERR: 0}
        async for stream, chunk in running:
            total[stream] += len(chunk)
        outcome = await running.wait()
    assert (total[Stream.STDOUT], total[Stream.STDERR], outcome.returncode) == (1_200_000, 3, 0)


async def test_the_guest_stops_when_nobody_takes_its_output(client: GuestClient) -> None:
    """A flood is held back at its source while its consumer waits, and others go on meanwhile."""
    async with client.open_exec(ExecRequest(argv=["yes"], max_stdout_bytes=1 << 40)) as running:
        for _ in range(20):
            assert (await client.exec(sh("echo hello"))).stdout == b"hello\n"
        async for _, chunk in running:
            assert len(chunk) <= MIB
            break


async def test_a_background_child_that_holds_stdout_does_not_hang(client: GuestClient) -> None:
    """The command is over when its main process is, though a child keeps the pipe; the child lives on and isn't killed by SIGPIPE."""
    with anyio.fail_after(10):
        outcome = await client.exec(sh("(sleep 0.5; echo late; sleep 100) & echo $!"))
    pid = outcome.stdout
    await anyio.sleep(0.7)  # by now it has written into its old pipe
    assert await is_alive(client, pid)
    await client.exec(sh('pkill -KILL -P "$1"; kill -KILL "$1"', pid.decode().strip()))


async def test_conversation(client: GuestClient) -> None:
    """Input can follow output: question and answer over one command."""
    async with client.open_exec(ExecRequest(argv=["cat"], stdin=True)) as running:
        for word in (b"one", b"two"):
            await running.send_stdin(word)
            assert await anext(running) == (Stream.STDOUT, word)
        await running.close_stdin()
        await running.close_stdin()
        assert (await running.wait()).returncode == 0
        with pytest.raises(BrokenPipeError):
            await running.send_stdin(b"late")


# ---- endings


async def test_timeout_kills_the_whole_tree(client: GuestClient) -> None:
    """At the timeout the command, its children and its background children are dead, and the result says so."""
    began = time.monotonic()
    outcome = await client.exec(sh("sleep 1000 & echo $!; sh -c 'sleep 1000; :' & echo $!; sleep 1000", timeout_s=1))
    assert outcome.timed_out
    assert 0.9 < time.monotonic() - began < 8
    pids = outcome.stdout.split()
    assert len(pids) == 2
    for pid in pids:
        assert not await is_alive(client, pid)


async def test_a_stubborn_tree_dies_too(client: GuestClient) -> None:
    """Ignoring signals does not outlive a timeout."""
    outcome = await client.exec(
        sh("trap '' TERM HUP INT; (trap '' TERM HUP; sleep 1000) & echo $!; wait", timeout_s=0.5)
    )
    assert outcome.timed_out
    assert not await is_alive(client, outcome.stdout)


async def test_cancellation_kills_the_whole_tree(client: GuestClient, folder: str) -> None:
    """A cancelled command is dead, with its children, when the cancellation is over."""
    with anyio.CancelScope() as scope:
        on = sh('sleep 1000 & echo $! >"$1/new" && mv "$1/new" "$1/pid"; echo; wait', folder)
        await client.exec(on, on_output=lambda _stream, _chunk: scope.cancel())
    assert scope.cancelled_caught
    pid = await client.read_file(f"{folder}/pid", max_bytes=100)
    assert not await is_alive(client, pid)
    assert (await client.exec(sh("echo on"))).stdout == b"on\n"


async def test_cancellation_of_a_flood_leaves_the_connection_whole(client: GuestClient) -> None:
    """A command cancelled in full flow leaves neither stray bytes nor missing credit."""
    for _ in range(5):
        with anyio.CancelScope() as scope:
            await client.exec(
                ExecRequest(argv=["yes"], max_stdout_bytes=1 << 40),
                input=b"x" * MIB,
                on_output=lambda *_: scope.cancel(),
            )
    assert len((await client.exec(sh("head -c 3000000 /dev/zero"))).stdout) == 3_000_000


async def test_leaving_early_kills(client: GuestClient) -> None:
    """Leaving the block of a command that runs ends it."""
    async with client.open_exec(sh("echo $$; exec sleep 1000")) as running:
        _, pid = await anext(running)
    assert not await is_alive(client, pid)


async def test_signals(client: GuestClient) -> None:
    """A signal reaches the main process alone, or everything it started."""
    async with client.open_exec(
        sh("trap 'echo got; exit 9' USR1; echo ready; while :; do sleep 0.05; done")
    ) as running:
        assert await anext(running) == (Stream.STDOUT, b"ready\n")
        await running.signal(signal.SIGUSR1)
        assert await anext(running) == (Stream.STDOUT, b"got\n")
        assert (await running.wait()).code == 9
    async with client.open_exec(sh("sleep 1000 & echo $!; wait")) as running:
        _, pid = await anext(running)
        await running.signal(signal.SIGKILL, whole_tree=True)
        outcome = await running.wait()
    assert (outcome.status, outcome.code, outcome.killed) == (ExecStatus.SIGNALED, 9, True)
    assert not await is_alive(client, pid)


# ---- terminals


async def read_until(running: RunningExec, wanted: bytes) -> bytes:
    """Output up to and with what is wanted."""
    seen = b""
    with anyio.fail_after(15):
        async for _, chunk in running:
            seen += chunk
            if wanted in seen:
                return seen
    pytest.fail(f"{wanted!r} never came, but {seen!r}")


async def test_terminal_size_and_resize(client: GuestClient) -> None:
    """A command on a terminal sees its size, and a change of it as SIGWINCH."""
    script = "stty size; trap 'stty size; exit 4' WINCH; echo waiting; while :; do sleep 0.05; done"
    async with client.open_exec(sh(script, pty=PtySize(rows=33, cols=101))) as running:
        assert b"33 101" in await read_until(running, b"waiting")
        await running.resize(44, 55)
        assert b"44 55" in await read_until(running, b"44 55")
        assert (await running.wait()).code == 4


async def test_terminal_is_one(client: GuestClient) -> None:
    """Standard input, output and error are the terminal; it is the controlling one; ^C interrupts; both outputs are one stream."""
    script = "tty >/dev/null && [ -t 1 ] && [ -t 2 ] && echo error >&2 && : </dev/tty && echo fine; exec sleep 1000"
    async with client.open_exec(sh(script, pty=PtySize(rows=24, cols=80), stdin=True)) as running:
        seen = await read_until(running, b"fine")
        assert b"error\r\n" in seen
        await running.send_stdin(b"\x03")
        assert (await running.wait()).returncode == 130


async def test_terminal_end_of_input(client: GuestClient) -> None:
    """Closing standard input of a terminal is ^D."""
    async with client.open_exec(ExecRequest(argv=["cat"], pty=PtySize(rows=24, cols=80), stdin=True)) as running:
        await running.send_stdin(b"hello\n")
        await read_until(running, b"hello\r\nhello\r\n")
        await running.close_stdin()
        assert (await running.wait()).returncode == 0


# ---- files


async def test_file_round_trip(client: GuestClient, folder: str) -> None:
    """What is written is read back, byte by byte: empty, binary, 50 MiB, in directories that weren't there."""
    large = os.urandom(MIB) * 50
    for name, content in (("empty", b""), ("binary", bytes(range(256))), ("a/b/c d\n", b"deep"), ("large", large)):
        await client.write_file(f"{folder}/{name}", content)
        assert await client.read_file(f"{folder}/{name}", max_bytes=64 * MIB) == content


async def test_relative_path(client: GuestClient, folder: str) -> None:
    """A relative path resolves against `cwd`."""
    await client.write_file("sub/file", b"here", cwd=folder)
    assert await client.read_file("sub/file", cwd=folder, max_bytes=10) == b"here"
    assert await client.read_file(f"{folder}/sub/file", max_bytes=10) == b"here"


async def test_mode_owner_and_append(client: GuestClient, folder: str) -> None:
    """A new file has 0644 or the mode asked for, an existing one keeps its own; appending appends."""
    path = f"{folder}/file"
    await client.write_file(path, b"one")
    assert (await client.exec(sh('stat -c %a "$1"', path))).stdout == b"644\n"
    await client.write_file(path, b"two", mode=0o700)
    await client.write_file(path, b"three")
    await client.write_file(path, b"four", append=True)
    assert (await client.exec(sh('stat -c %a "$1"', path))).stdout == b"700\n"
    assert await client.read_file(path, max_bytes=100) == b"threefour"


@pytest.mark.root
async def test_files_belong_to_their_user(client: GuestClient, folder: str) -> None:
    """A file is its writer's unless another owner was asked for."""
    await client.write_file(f"{folder}/a", b"x", user="nobody")
    await client.write_file(f"{folder}/b", b"x", owner="1234")
    assert (await client.exec(sh('stat -c %u "$1/a" "$1/b"', folder))).stdout == b"65534\n1234\n"
    with pytest.raises(OSError, match="nobody-of-that-name"):
        await client.write_file(f"{folder}/c", b"x", owner="nobody-of-that-name")


async def test_missing_file(client: GuestClient, folder: str) -> None:
    """Not there is `FileNotFoundError`, with the path."""
    with pytest.raises(FileNotFoundError, match="no-such-file"):
        await client.read_file(f"{folder}/no-such-file", max_bytes=10)


async def test_directories(client: GuestClient, folder: str) -> None:
    """A directory is neither read nor replaced."""
    with pytest.raises(IsADirectoryError, match="directory"):
        await client.read_file(folder, max_bytes=10)
    with pytest.raises(IsADirectoryError, match="directory"):
        await client.write_file(folder, b"x" * 100_000)
    with pytest.raises(NotADirectoryError):
        await client.write_file("/etc/passwd/below", b"x")


@pytest.mark.root
async def test_permissions(client: GuestClient, folder: str) -> None:
    """File operations have the rights of their user and no more."""
    await client.write_file(f"{folder}/secret", b"x", mode=0o600)
    await client.write_file(f"{folder}/locked/file", b"x")
    with pytest.raises(PermissionError, match="secret"):
        await client.read_file(f"{folder}/secret", max_bytes=10, user="nobody")
    with pytest.raises(PermissionError, match="secret"):
        await client.write_file(f"{folder}/secret", b"y" * MIB, user="nobody")
    with pytest.raises(PermissionError, match="new"):
        await client.write_file(f"{folder}/locked/new", b"y", user="nobody")
    assert await client.read_file(f"{folder}/secret", max_bytes=10) == b"x"


async def test_too_large(client: GuestClient, folder: str) -> None:
    """A file beyond the limit is refused with its size; one of exactly the limit is read."""
    await client.write_file(f"{folder}/f", b"x" * 2048)
    with pytest.raises(FileTooLarge) as caught:
        await client.read_file(f"{folder}/f", max_bytes=1024)
    assert caught.value.size_bytes == 2048
    assert len(await client.read_file(f"{folder}/f", max_bytes=2048)) == 2048


async def test_files_that_do_not_know_their_size(client: GuestClient) -> None:
    """A file of /proc is read, and bounded, though it says that it is empty."""
    assert b"Uid:" in await client.read_file("/proc/self/status", max_bytes=MIB)
    with pytest.raises(FileTooLarge):
        await client.read_file("/proc/self/status", max_bytes=10)


async def test_special_files_do_not_hang(client: GuestClient, folder: str) -> None:
    """A FIFO or a device is refused, at once, for reading and writing."""
    await client.exec(sh('mkfifo "$1/fifo"', folder))
    with anyio.fail_after(10):
        for path in (f"{folder}/fifo", "/dev/zero"):
            with pytest.raises(OSError, match=path):
                await client.read_file(path, max_bytes=100)
            with pytest.raises(OSError, match=path):
                await client.write_file(path, b"x")


async def test_symbolic_links(client: GuestClient, folder: str) -> None:
    """A link is followed: its target is read and replaced, the link stays."""
    await client.write_file(f"{folder}/target", b"old")
    await client.exec(sh('ln -s target "$1/link"; ln -s loop "$1/loop"', folder))
    assert await client.read_file(f"{folder}/link", max_bytes=10) == b"old"
    await client.write_file(f"{folder}/link", b"new")
    assert await client.read_file(f"{folder}/target", max_bytes=10) == b"new"
    assert (await client.exec(sh('readlink "$1/link"', folder))).stdout == b"target\n"
    with pytest.raises(OSError, match="loop"):
        await client.read_file(f"{folder}/loop", max_bytes=10)


async def test_an_interrupted_write_changes_nothing(client: GuestClient, folder: str) -> None:
    """A write that breaks off half-way leaves the old file, and nothing beside it."""
    await client.write_file(f"{folder}/file", b"old")

    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 500_000
        raise LookupError("the source broke")

    with pytest.raises(LookupError):
        await client.write_file(f"{folder}/file", broken())
    assert (await client.exec(ExecRequest(argv=["ls", "-A", folder]))).stdout == b"file\n"
    assert await client.read_file(f"{folder}/file", max_bytes=10) == b"old"


# ---- many at once


async def test_a_thousand_commands_at_once(client: GuestClient) -> None:
    """1,000 concurrent commands queue, each gets its own answer, and none starves."""
    answers: dict[int, bytes] = {}

    async def one(number: int) -> None:
        answers[number] = (await client.exec(ExecRequest(argv=["cat"]), input=str(number).encode())).stdout

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for number in range(1000):
                tasks.start_soon(one, number)
    assert answers == {number: str(number).encode() for number in range(1000)}


async def test_work_of_all_kinds_at_once(client: GuestClient, folder: str) -> None:
    """Floods, files, cancellations and short commands over one channel do not disturb each other."""

    async def flood(number: int) -> None:
        size = 3_000_000 + number
        assert len((await client.exec(sh(f"head -c {size} /dev/zero"))).stdout) == size

    async def copy(number: int) -> None:
        content = os.urandom(400_000)
        await client.write_file(f"{folder}/{number}", content)
        assert await client.read_file(f"{folder}/{number}", max_bytes=MIB) == content

    async def give_up(number: int) -> None:
        with anyio.move_on_after(0.01 * number):
            await client.exec(ExecRequest(argv=["yes"], max_stdout_bytes=1 << 40))

    async def chat(number: int) -> None:
        assert (await client.exec(ExecRequest(argv=["cat"]), input=b"x" * number)).stdout == b"x" * number
        await client.ping()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(25):
                for work in (flood, copy, give_up, chat):
                    tasks.start_soon(work, number)


# ---- the connection


async def test_ping(client: GuestClient) -> None:
    """The agent answers while commands run."""
    async with client.open_exec(ExecRequest(argv=["sleep", "1000"])):
        assert await client.ping(timeout_s=5) < 5


async def test_operations_wait_for_renewal(agent_socket: socket.socket) -> None:
    """Nothing runs in a guest that wasn't renewed."""
    async with GuestClient.from_socket(agent_socket) as client:
        await client.hello()
        with pytest.raises(RuntimeError, match="RENEW"):
            await client.exec(ExecRequest(argv=["true"]))
        await renew(client)
        assert (await client.exec(ExecRequest(argv=["true"]))).returncode == 0


async def test_a_dead_agent_ends_every_operation_at_once(
    agent_process: tuple[subprocess.Popen[bytes], socket.socket],
) -> None:
    """When the agent dies, every operation that runs or queues, and every later one, is a `CellError`."""
    process, ours = agent_process
    failed: list[CellError] = []
    async with GuestClient.from_socket(ours, max_ops=4) as client:
        await client.hello()
        await renew(client)

        async def one() -> None:
            with pytest.raises(CellError) as caught:
                await client.exec(ExecRequest(argv=["sleep", "2"]))
            failed.append(caught.value)

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                for _ in range(8):
                    tasks.start_soon(one)
                await client.ping()
                process.send_signal(signal.SIGKILL)
        with pytest.raises(CellError, match="gone"):
            await client.ping()
    assert len(failed) == 8

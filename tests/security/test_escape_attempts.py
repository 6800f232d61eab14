"""Attacks on a real cell that once worked, or nearly."""

from __future__ import annotations

import errno

import anyio
import pytest
from tests.machine import PATIENCE_S
from tests.security.conftest import Attacker

from belljar.channel import PtySize

pytestmark = [pytest.mark.anyio, pytest.mark.vm]

PRELUDE = (
    "import ctypes, errno, os, resource, signal, sys, termios, time\nlibc = ctypes.CDLL(None,"
    " use_errno=True)\n"
)
# Its main process fills what nobody takes; a child of it, left behind, throws that away.
EMPTIED = """
BEFORE
me = os.getpid()
if os.fork() == 0:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    while os.getppid() == me:
        time.sleep(0.01)
    time.sleep(0.2)
    EMPTY
    open("/tmp/emptied", "w").close()
    time.sleep(600)
os.set_blocking(1, False)
full = 0
while full < 40:
    try:
        os.write(1, b"x" * 1024)
    except BlockingIOError:
        full += 1
        time.sleep(0.005)
"""
DRAIN = """
    try:
        while os.read(reader, 65536):
            pass
    except BlockingIOError:
        pass
"""


async def python(cell: Attacker, code: str) -> str:
    """The standard output of a hostile program of root's that ended well."""
    output = await cell.exec(["python3", "-u", "-c", PRELUDE + code], user="root", timeout_s=90)
    assert output.returncode == 0, output.stderr.decode()
    return str(output.stdout.decode())


async def kill_the_rest(cell: Attacker) -> None:
    """What an attack left running, so that the next one starts from a quiet cell."""
    await cell.exec(["sh", "-c", "kill -9 -1"], user="root")
    await cell.exec(["sh", "-c", "kill -9 -1"], user="user")


async def test_open_files_of_one_do_not_shut_out_others(cell: Attacker) -> None:
    """A hundred thousand open files: the next command starts, a file that is there is found."""
    await python(
        cell,
        """
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
full, says = os.pipe()
for _ in range(25):
    if os.fork() == 0:
        os.setsid()
        try:
            while True:
                os.open("/dev/null", os.O_RDONLY)
        except OSError:
            os.write(says, b"x")
        os.close(1), os.close(2)
        time.sleep(600)
for _ in range(25):
    os.read(full, 1)
""",
    )
    assert (await cell.exec(["id", "-u"], user="user")).stdout == b"1000\n"
    assert (await cell.cell.read_file("/etc/passwd", max_bytes=1 << 20, user="user")).startswith(
        b"root:"
    )
    await kill_the_rest(cell)


async def test_a_removed_account_is_no_missing_file(cell: Attacker) -> None:
    """Reading a file that is there fails, but not as a file that isn't there."""
    await cell.exec(
        ["sh", "-c", "mv /etc/passwd /etc/passwd.kept; echo 'x:x:0:0::/:/bin/sh' > /etc/passwd"],
        user="0",
    )
    try:
        with pytest.raises(OSError) as refused:  # noqa: PT011 - the errno is what is asked
            await cell.cell.read_file("/etc/hostname", max_bytes=4096, user="user")
    finally:
        await cell.exec(["mv", "/etc/passwd.kept", "/etc/passwd"], user="0")
    assert refused.value.errno == errno.EIO
    assert not isinstance(refused.value, FileNotFoundError)


@pytest.mark.parametrize("user", ["root", "user"])
async def test_a_link_does_not_lead_to_the_helper_itself(cell: Attacker, user: str) -> None:
    """Through /proc/self lie the helper's program and a copy of the agent's memory."""
    for link in ("exe", "root/etc/hostname", "cwd/etc/hostname"):
        await cell.exec(["ln", "-sfn", f"/proc/self/{link}", "/tmp/bait"], user="root")
        with pytest.raises(OSError):  # noqa: PT011 - any refusal will do
            await cell.cell.read_file("/tmp/bait", max_bytes=1 << 20, user=user)
    for name in ("mem", "environ", "auxv", "syscall", "stack", "pagemap"):
        await cell.exec(["ln", "-sfn", f"/proc/self/{name}", "/tmp/bait"], user="root")
        with pytest.raises(PermissionError):
            await cell.cell.read_file("/tmp/bait", max_bytes=4096, user=user)
        with pytest.raises(PermissionError):
            await cell.cell.write_file("/tmp/bait", b"x", user=user)


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_output_that_is_taken_away_still_gives_a_result(
    cell: Attacker, *, is_terminal: bool
) -> None:
    """Owed output that is flushed (terminal) or read away (pipe) holds up nobody."""
    before, empty = (
        "reader = os.open('/proc/self/fd/1', os.O_RDONLY | os.O_NONBLOCK)",
        DRAIN.strip(),
    )
    if is_terminal:
        before, empty = "", "termios.tcflush(1, termios.TCOFLUSH)"
    argv = ["python3", "-c", PRELUDE + EMPTIED.replace("BEFORE", before).replace("EMPTY", empty)]
    pty = PtySize(rows=24, cols=80) if is_terminal else None
    with anyio.fail_after(PATIENCE_S):
        async with cell.cell.open_exec(argv, user="root", pty=pty) as running:
            # Nobody takes the output, so that the agent owes some when it is thrown away.
            while (await cell.exec(["rm", "/tmp/emptied"], user="root")).returncode != 0:
                pass
            async for _ in running:
                pass
            assert (await running.wait()).returncode == 0
    await kill_the_rest(cell)


async def test_system_v_objects_can_not_hold_all_memory(cell: Attacker) -> None:
    """Shared segments stay when their maker is gone: bounded well below the memory."""
    made = await python(
        cell,
        """
made = []
while (number := libc.shmget(0, 16 << 20, 0o1600)) >= 0:
    made.append(number)
print(len(made), errno.errorcode[ctypes.get_errno()])
for number in made:
    libc.shmctl(number, 0, None)
""",
    )
    count, why = made.split()
    assert int(count) * 16 <= 320 // 8
    assert why == "ENOSPC"


async def test_sysfs_tells_nothing_of_the_kernels_memory(cell: Attacker) -> None:
    """Where the kernel lies and how it was started is covered."""
    for name in ("kernel/notes", "kernel/vmcoreinfo", "kernel/boot_params"):
        script = f"cat /sys/{name} 2>/dev/null; ls /sys/{name}/"
        assert (await cell.exec(["sh", "-c", script], user="root")).stdout == b"", name


async def test_a_killer_of_helpers_is_told_from_a_missing_file(cell: Attacker) -> None:
    """It can stop the host from reading, but not make a file seem absent or other."""
    await python(
        cell,
        """
if os.fork() == 0:
    os.setsid(), os.close(1), os.close(2)
    me = os.getpid()
    end = time.monotonic() + 2
    while time.monotonic() < end:
        for pid in range(me + 1, me + 200):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
    os._exit(0)
time.sleep(0.2)
""",
    )
    seen: set[int | None] = set()
    for _ in range(20):
        try:
            assert (
                await cell.cell.read_file("/etc/passwd", max_bytes=1 << 20, user="root")
            ).endswith(b"\n")
        except OSError as error:
            seen.add(error.errno)
    assert seen <= {errno.EIO}
    with anyio.fail_after(PATIENCE_S):
        while (await cell.exec(["sleep", "0.2"], user="root")).returncode != 0:
            pass  # the guest's own two seconds are not over

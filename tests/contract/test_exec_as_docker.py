"""What a task's author knows of `docker exec` holds for every tier."""

from __future__ import annotations

import errno

import pytest

from belljar.cell.cell import Cell

pytestmark = pytest.mark.anyio
CLOSED = "/var/closed"
"""A directory of root's that nobody else can enter, with one below it that everybody could use."""


@pytest.fixture
async def closed(cell: Cell) -> str:
    script = (
        f"mkdir -p {CLOSED}/open && echo text > {CLOSED}/open/file && chmod 700 {CLOSED} && chmod"
        f" 755 {CLOSED}/open"
    )
    assert (await cell.exec(["sh", "-c", script], user="0")).success
    return f"{CLOSED}/open"


@pytest.mark.promise("1.6")
async def test_the_directory_is_entered_before_the_user_is_dropped(cell: Cell, closed: str) -> None:
    """A user works in a directory that it can't get to by itself, and gets no other right by it."""
    assert (await cell.exec(["cat", "file"], user="nobody", cwd=closed)).stdout == b"text\n"
    assert not (await cell.exec(["cat", f"{closed}/file"], user="nobody")).success
    listed = await cell.exec(["ls", "."], user="nobody", cwd=CLOSED)
    assert (listed.not_started_errno, listed.success, listed.stdout) == (None, False, b"")
    assert (await cell.exec(["sh", "-c", "touch new"], user="nobody", cwd=closed)).returncode != 0
    client = cell._live.client
    assert await client.read_file("file", user="nobody", cwd=closed, max_bytes=10) == b"text\n"
    with pytest.raises(PermissionError):
        await client.write_file("new", b"", user="nobody", cwd=closed)
    with pytest.raises(PermissionError):
        await client.read_file("open/file", user="nobody", cwd=CLOSED, max_bytes=10)


async def test_an_ordinary_user_listens_at_any_port(cell: Cell) -> None:
    """Also below 1024; the setting is not the workload's to change, unless the kernel is its own."""
    listen = "import socket; socket.create_server(('127.0.0.1', 80))"
    assert (await cell.exec(["python3", "-c", listen], user="nobody")).success
    setting = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
    changed = await cell.exec(["sh", "-c", f"echo 1024 > {setting}"], user="0")
    assert not changed.success or cell.tier != "container"


@pytest.mark.promise("1.6")
async def test_what_is_missing_is_named(cell: Cell) -> None:
    """A user, group or directory that there is not is a result that names it."""
    for user, cwd, code, stage, named in (
        ("nobodyatall", "/", errno.ENOENT, "user", "nobodyatall"),
        ("nobodyatall:root", "/", errno.ENOENT, "user", "nobodyatall"),
        ("nobody:nogroupatall", "/", errno.ENOENT, "user", "nogroupatall"),
        ("nobody", "/no/such", errno.ENOENT, "cwd", "/no/such"),
        ("nobody", "/etc/passwd", errno.ENOTDIR, "cwd", "/etc/passwd"),
    ):
        output = await cell.exec(["true"], user=user, cwd=cwd)
        assert (output.not_started_errno, output.stage) == (code, stage)
        assert named in output.why_not_started


@pytest.mark.promise("1.6")
async def test_who_it_runs_as(cell: Cell) -> None:
    """Groups come from the group file unless one is asked for."""
    await cell.exec(["sh", "-c", "echo extra:x:4242:daemon,nobody >> /etc/group"], user="0")
    ask = ["sh", "-c", 'echo "$(id -u) $(id -g) $(id -G) $HOME"']
    found = await cell.exec(["sh", "-c", "grep ^nobody: /etc/passwd | cut -d: -f6"])
    home = found.stdout.decode().strip()
    for user, expected in (
        ("nobody", f"65534 65534 65534 4242 {home}"),
        ("65534", f"65534 65534 65534 4242 {home}"),
        ("nobody:", f"65534 65534 65534 4242 {home}"),
        ("nobody:0", f"65534 0 0 {home}"),
        ("nobody:extra", f"65534 4242 4242 {home}"),
        ("1234", "1234 0 0 /"),
        ("1234:4321", "1234 4321 4321 /"),
    ):
        assert (await cell.exec(ask, user=user)).stdout.decode().strip() == expected, user


@pytest.mark.promise("1.6")
async def test_no_directory_leads_out_of_the_root(cell: Cell) -> None:
    """By a process's root or a descriptor: refused, or below its own root (CVE-2024-21626)."""
    here = 'test "$(stat -c %d:%i .)" = "$(stat -c %d:%i "$(pwd -P)")"'
    for place in (
        *(f"/proc/self/fd/{fd}" for fd in range(10)),
        *("/proc/1/root", "/proc/1/cwd", "/proc/1/fd/0"),
    ):
        for user in ("nobody", "0"):
            output = await cell.exec(["sh", "-c", here], user=user, cwd=place)
            is_refused = output.not_started_errno is not None
            assert output.success or is_refused, (place, user, output.stderr)

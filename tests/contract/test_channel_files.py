"""Files: whole or not at all, with the rights of their user."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import anyio
import pytest
from tests.fakes.asking import sh
from tests.machine import PATIENCE_S

from belljar.channel import ExecRequest, FileTooLargeError, GuestClient

pytestmark = pytest.mark.anyio
MIB = 1 << 20


async def test_file_round_trip(client: GuestClient, folder: str) -> None:
    """What is written is read back, byte by byte."""
    large = os.urandom(MIB) * 50
    for name, content in (
        ("empty", b""),
        ("binary", bytes(range(256))),
        ("a/b/c d\n", b"deep"),
        ("large", large),
    ):
        await client.write_file(name, content, cwd=folder)
        assert await client.read_file(f"{folder}/{name}", max_bytes=64 * MIB) == content
    assert await client.read_file("binary", cwd=folder, max_bytes=256) == bytes(range(256))


async def test_mode_and_owner(client: GuestClient, folder: str) -> None:
    """A new file has 0644 or the mode asked for, an existing one keeps its own."""
    path = f"{folder}/file"
    await client.write_file(path, b"one")
    assert (await client.exec(sh('stat -c %a "$1"', path))).stdout == b"644\n"
    await client.write_file(path, b"two", mode=0o700)
    await client.write_file(path, b"three")
    assert (await client.exec(sh('stat -c %a "$1"', path))).stdout == b"700\n"
    assert await client.read_file(path, max_bytes=100) == b"three"


async def test_files_belong_to_their_user(client: GuestClient, folder: str) -> None:
    """A file is its writer's unless another owner was asked for."""
    await client.write_file(f"{folder}/a", b"x", user="nobody")
    await client.write_file(f"{folder}/b", b"x", owner="1234")
    assert (await client.exec(sh('stat -c %u "$1/a" "$1/b"', folder))).stdout == b"65534\n1234\n"
    with pytest.raises(OSError, match="nobody-of-that-name"):
        await client.write_file(f"{folder}/c", b"x", owner="nobody-of-that-name")


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
    with pytest.raises(FileTooLargeError) as caught:
        await client.read_file(f"{folder}/f", max_bytes=1024)
    assert caught.value.size_bytes == 2048
    assert len(await client.read_file(f"{folder}/f", max_bytes=2048)) == 2048
    assert b"Uid:" in await client.read_file("/proc/self/status", max_bytes=MIB)
    with pytest.raises(FileTooLargeError):
        await client.read_file("/proc/self/status", max_bytes=10)


@pytest.mark.promise("4.3")
async def test_special_files_do_not_hang(client: GuestClient, folder: str) -> None:
    """A FIFO or a device is refused, at once, for reading and writing."""
    await client.exec(sh('mkfifo "$1/fifo"', folder))
    with anyio.fail_after(PATIENCE_S):
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


@pytest.mark.promise("4.3")
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

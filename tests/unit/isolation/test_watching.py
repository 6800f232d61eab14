"""The thread that reads marks, on files of this host."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from belljar.channel.operations import OwnReads
from belljar.isolation.oci.marks import Mechanism, mark_files
from belljar.isolation.oci.watching import MarkWatch, Processes
from belljar.isolation.touches import Access

pytestmark = pytest.mark.anyio


def watch(mechanism: Mechanism, root: Path, own: OwnReads, agent: int) -> MarkWatch:
    """One file, `/a`."""
    held = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        return MarkWatch(mark_files(mechanism, held, ["/a"]), Processes(agent), own)
    finally:
        os.close(held)


def descriptors() -> set[str]:
    """The numbers of this process's."""
    return {file.name for file in Path("/proc/self/fd").iterdir()}


async def test_all_is_reported_when_it_is_closed(tmp_path: Path) -> None:
    """A flood too: as a few reports that say how many there were; and no thread or descriptor
    stays."""
    file = tmp_path / "a"
    file.write_text("x")
    before = descriptors()
    accesses, ends = list[Access](), list[str]()
    watching = watch("inotify", tmp_path, OwnReads(), os.getpid())
    watching.begin(accesses.append, ends.append)
    for _ in range(300):
        file.read_bytes()
        file.stat()
    await watching.aclose()
    await watching.aclose()
    assert {access.operation for access in accesses} == {"open", "read"}
    assert sum(access.count for access in accesses) > 100
    assert len(accesses) < 50
    assert ends == []
    assert descriptors() <= before


async def test_a_callback_that_raises_ends_the_sensor(tmp_path: Path) -> None:
    """It is said why; the process goes on."""
    (tmp_path / "a").write_text("x")
    ends = list[str]()

    def fail(access: Access) -> None:
        raise RuntimeError(access.path)

    watching = watch("inotify", tmp_path, OwnReads(), os.getpid())
    watching.begin(fail, ends.append)
    (tmp_path / "a").read_bytes()
    await watching.aclose()
    assert ends == ["RuntimeError: /a"]


async def test_the_hosts_own_reads_are_left_out(tmp_path: Path) -> None:
    """While one runs; what is read afterwards is reported."""
    (tmp_path / "a").write_text("x")
    own, accesses = OwnReads(), list[Access]()
    watching = watch("inotify", tmp_path, own, os.getpid())
    watching.begin(accesses.append, print)
    async with own.of("a", "/"):
        (tmp_path / "a").read_bytes()
    await watching.aclose()
    assert accesses == []
    assert own.listeners == []


@pytest.mark.root
async def test_the_agents_program_is_known_and_others_named(tmp_path: Path) -> None:
    """A process of the agent's program is Belljar's; another is named, with its number."""
    (tmp_path / "a").write_text("x")
    accesses = list[Access]()
    async with await anyio.open_process(["tail", "-f", str(tmp_path / "a")]) as reader:
        assert reader.stdout is not None
        assert await reader.stdout.receive() == b"x"
        watching = watch("fanotify", tmp_path, OwnReads(), os.getpid())
        watching.begin(accesses.append, print)
        (tmp_path / "a").read_bytes()  # this process counts as the agent
        with (tmp_path / "a").open("a") as file:
            file.write("y")
        assert await reader.stdout.receive() == b"y"
        await watching.aclose()
        reader.kill()
    assert {(access.process, access.operation) for access in accesses} == {("tail", "read")}

"""The search of a new machine: what the old one says of itself decides nothing."""

from __future__ import annotations

import mmap
import os
import secrets
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fakes import guest as g
from tests.fakes.guest import FakeGuest, GuestOp, Script
from tests.fakes.vm import staged

from belljar.cell.canary import canary_in, memory_has
from belljar.errors import CellError, ContainmentBreach
from belljar.events import Kind

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]
MACHINE = cast("Any", SimpleNamespace(holds=lambda pid: pid == os.getpid()))


def planting(said: bytes, end: str = "") -> Script:
    """Leave what is said, and end when told to, at once (`program`), or with the guest."""

    async def plant(guest: FakeGuest, op: GuestOp) -> None:
        await guest.started(op)
        await guest.output(op, 1, said)
        if end == "agent":
            guest.close()
        elif end == "program":
            await guest.finish(op, g.SIGNALED, 9)
        else:
            while await guest.stdin(op):
                pass
            await guest.finish(op)

    return plant


async def found_nothing(guest: FakeGuest, op: GuestOp) -> None:
    await guest.started(op)
    await guest.output(op, 1, b"end\n")
    await guest.finish(op)


@pytest.mark.promise("3.5")
async def test_the_old_machine_neither_forges_nor_hides_a_trace() -> None:
    """What it names of itself is not searched for; what it keeps back is, and is on record."""
    asked: dict[str, str] = {}

    forge = planting(b"port 22\nfile /etc\nunseen all\nprocess\nend\n")

    async def search(guest: FakeGuest, op: GuestOp) -> None:
        await guest.started(op)
        said = b""
        while chunk := await guest.stdin(op):
            said += chunk
        for line in said.decode().splitlines():
            name, _, asked[name] = line.partition("=")
        await guest.output(op, 1, b"end\n")
        await guest.finish(op)

    async with staged({b"sh": forge}) as old, staged({b"sh": search}) as new:
        async with canary_in(old.cell) as canary:
            await canary.search(new.cell)
        assert set(asked) == {"token", "port", "dir0", "dir1"}
        assert {asked["dir0"], asked["dir1"]} == {"/tmp", old.cell.plan.workdir}
        assert asked["port"] != "22"
        assert new.kinds() == [Kind.CELL_REVERT_VERIFIED]
        data = new.last(Kind.CELL_REVERT_VERIFIED).data
    assert (data["planted"], data["found"]) == (["process"], [])
    missing = {"file", "port", "environment", "memory"}
    assert {
        str(each).split(" ")[0].rstrip(":") for each in cast("Any", data["not_checked"])
    } == missing


@pytest.mark.parametrize("ends", ["program", "agent"])
async def test_traces_that_ended_before_the_search_verify_nothing(ends: str) -> None:
    """The old machine's workload may end the program that left them, or all: the record says so."""
    plant = planting(b"process\nmemory\nend\n", ends)
    async with staged({b"sh": plant}) as old, staged({b"sh": found_nothing}) as new:
        async with canary_in(old.cell) as canary:
            await canary.search(new.cell)
        data = new.last(Kind.CELL_REVERT_VERIFIED).data
    assert data["planted"] == []
    assert "memory: ended before the search" in cast("Any", data["not_checked"])


async def test_a_broken_protocol_while_traces_are_left_is_on_record() -> None:
    """The old machine's guest is hostile; the revert goes on."""

    async def violate(guest: FakeGuest, op: GuestOp) -> None:
        await guest.started(op)
        await guest.send(g.frame(g.RESULT, op.id, b"no result"))

    async with staged({b"sh": violate}) as old:
        async with canary_in(old.cell) as canary:
            assert canary.said == {""}
        assert Kind.PROTOCOL_VIOLATION in old.kinds()


@pytest.mark.parametrize("ending", ["guest dies", "search is killed", "says too little"])
@pytest.mark.parametrize("where", ["memory", "guest", ""])
async def test_a_trace_that_ends_the_search_is_found(
    monkeypatch: pytest.MonkeyPatch, ending: str, where: str
) -> None:
    """What was found until then is on record and a breach; nothing found is no proof either."""

    async def search(guest: FakeGuest, op: GuestOp) -> None:
        await guest.started(op)
        await guest.output(op, 1, b"process 7\n" * (where == "guest") + b"unse")
        if ending == "guest dies":
            guest.close()
        else:
            killed = ending == "search is killed"
            await guest.finish(op, *((g.SIGNALED, 9) if killed else ()))

    monkeypatch.setattr("belljar.cell.canary.memory_has", lambda *_: where == "memory")
    plant = planting(b"process\nmemory\nend\n")
    async with staged({b"sh": plant}) as old, staged({b"sh": search}) as new:
        async with canary_in(old.cell) as canary:
            with pytest.raises(ContainmentBreach if where else CellError):
                await canary.search(new.cell)
        data = new.last(Kind.CELL_REVERT_VERIFIED).data
    assert data["found"] == {"memory": ["memory"], "guest": ["process 7"], "": []}[where]
    assert "files, processes, port: not searched" in cast("Any", data["not_checked"])


def test_memory_is_searched_whatever_its_files_are_called(tmp_path: Path) -> None:
    """A workload maps files of any name: other ends of lines in it break no line."""
    file, needle = tmp_path / "a\x0bb\x85c\u2028d", secrets.token_hex(16).encode()
    file.write_bytes(bytes(mmap.PAGESIZE))
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[0] == 0
        assert memory_has(MACHINE, needle)


def test_memory_that_is_not_searched_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapping that is too large hides nothing silently."""
    monkeypatch.setattr("belljar.cell.canary._MAX_MAPPING_BYTES", 0)
    assert memory_has(MACHINE, b"anything") is None

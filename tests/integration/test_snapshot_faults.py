"""What goes wrong while a cell is saved or forked: it goes on, or has ended, and nothing is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from tests.integration.faults import mounted
from tests.integration.test_snapshot import POLICY, said, saved, scratch_of

from belljar.cell.open import open_cell
from belljar.errors import CellError, HostError

pytestmark = [pytest.mark.vm, pytest.mark.slow]
FILES = {**POLICY, "tier": "container"}


def flip(path: Path) -> None:
    """Another bit in the midst of a file; twice is as before."""
    with path.open("r+b") as file:
        file.seek(20 << 10)
        byte = file.read(1)
        file.seek(20 << 10)
        file.write(bytes((byte[0] ^ 1,)))


@pytest.mark.promise("3.6")
def test_a_snapshot_that_was_changed_is_refused(vm_home: Path) -> None:
    """One byte in either file; also a snapshot that was taken with something else."""

    async def look() -> None:
        async with saved(vm_home) as (_, cell, snapshot):
            assert snapshot.machine is not None
            other = replace(snapshot, machine=replace(snapshot.machine, key="0" * 64))
            with pytest.raises(HostError):
                async with other.fork():
                    pass
            for path in (snapshot.directory / name for name in ("state", "memory")):
                path.chmod(0o600)
                flip(path)
                with pytest.raises(CellError, match="not the one that was saved"):
                    async with snapshot.fork():
                        pass
                if path.name == "state":
                    flip(path)  # the memory stays changed
            with pytest.raises(CellError):
                await cell.revert(to=snapshot)
            assert await said(cell, "echo fine") == ["fine"]

    anyio.run(look)


def test_a_full_disk_refuses_and_the_cell_goes_on(vm_home: Path) -> None:
    """Nothing of the snapshot is left, and the next one, with room, is whole."""

    async def look() -> None:
        async with open_cell(FILES, home=vm_home) as cell:
            await said(cell, "head -c 24M /dev/urandom > /tmp/much")
            with mounted(vm_home / "tmp", "size=16m,mode=0711"):
                with pytest.raises(HostError):
                    await cell.snapshot()
                assert scratch_of(vm_home) == []
                assert await said(cell, "echo fine") == ["fine"]
            async with (await cell.snapshot()).fork() as fork:
                assert await said(fork, "echo fine") == ["fine"]

    anyio.run(look)


def test_a_file_without_end_is_refused_at_once(vm_home: Path) -> None:
    """The cell packs no terabyte of nothing for as long as a command may take."""

    async def look() -> None:
        resources = {"disk": "64 MiB", "exec_timeout": "30 s"}
        async with open_cell({**FILES, "resources": resources}, home=vm_home) as cell:
            await said(cell, "truncate -s 1T /tmp/endless")
            with anyio.fail_after(20), pytest.raises(CellError, match="too much to keep"):
                await cell.snapshot()
            assert await said(cell, "echo fine") == ["fine"]

    anyio.run(look)

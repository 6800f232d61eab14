"""The limit of core dumps of 1, at which the host's kernel starts no program for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import anyio.to_thread
import pytest
from tests.security.conftest import policy_of

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.policy.load import resolve_policy
from belljar.policy.loaded import with_tier
from belljar.store.journal import Journal

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.vm]

POLICY = (
    "belljar: 1\nrisk: low\ntier: container\nuser: root\nresources: {memory: 256MiB, disk: 64MiB,"
    " processes: 256}\n"
)
# Each line: how it was tried, what the call said, the limit after it.
ATTEMPTS = """
import ctypes, os, platform, resource, sys
libc = ctypes.CDLL(None, use_errno=True)
SETRLIMIT, PRLIMIT = (160, 302) if platform.machine() == "x86_64" else (164, 261)
none, old = (ctypes.c_ulong * 2)(0, 1), (ctypes.c_ulong * 2)(7, 7)
def tell(how, *args):
    ctypes.set_errno(0)
    libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    print(how, ctypes.get_errno(), *resource.getrlimit(resource.RLIMIT_CORE))
tell("setrlimit", SETRLIMIT, 4, none)
tell("setrlimit-high", SETRLIMIT, 1 << 32 | 4, none)
tell("prlimit", PRLIMIT, 0, 4, none, None)
tell("prlimit-high", PRLIMIT, 0, 1 << 32 | 4, none, None)
tell("prlimit-pid", PRLIMIT, os.getppid(), 4, none, None)
tell("prlimit-old", PRLIMIT, 0, 4, none, old)
tell("other", SETRLIMIT, 7, (ctypes.c_ulong * 2)(64, 64))
print("files", *resource.getrlimit(resource.RLIMIT_NOFILE), "old", *old)
"""
KEPT = [
    *(f"{way} 0 1 1" for way in ("setrlimit", "setrlimit-high")),
    *(f"{way} 0 1 1" for way in ("prlimit", "prlimit-high", "prlimit-pid")),
    *("prlimit-old 1 1 1", "other 0 1 1", "files 64 64 old 7 7"),
]


@pytest.fixture(scope="module")
async def cell(anyio_backend: str, vm_home: Path) -> AsyncIterator[Cell]:
    async with open_cell(policy_of(POLICY), home=vm_home) as opened:
        yield opened


def core_limits(groups: Iterable[Path]) -> list[tuple[str, ...]]:
    pids = {int(pid) for group in groups for pid in (group / "cgroup.procs").read_text().split()}
    texts = [Path(f"/proc/{pid}/limits").read_text() for pid in pids]
    lines = [line.split() for text in texts for line in text.splitlines()]
    return [tuple(words[4:6]) for words in lines if words[:2] == ["Max", "core"]]


@pytest.mark.promise("8.2")
@pytest.mark.parametrize("user", ["root", "user"])
async def test_the_limit_stays_whoever_asks_and_by_whichever_call(cell: Cell, user: str) -> None:
    """It is said to be done, and is not; asked for the old value as well, it is refused."""
    said = await cell.exec(["python3", "-c", ATTEMPTS], user=user)
    assert said.stdout.decode().splitlines() == KEPT, said.stderr


@pytest.mark.promise("8.2")
@pytest.mark.parametrize(("tier", "least"), [("container", 4), ("gvisor", 3), ("microvm", 1)])
async def test_everything_of_a_cell_on_this_host_has_the_limit(
    tier: str, least: int, vm_home: Path
) -> None:
    """As the host's kernel says, for each process in the cell's control groups."""
    async with open_cell(with_tier(resolve_policy("low"), tier), home=vm_home) as cell:
        await cell.exec(["sh", "-c", "sleep 60 >/dev/null 2>&1 &"])
        (entry,) = [entry for entry in Journal(vm_home).entries() if entry.cell_id == cell.id]
        limits = await anyio.to_thread.run_sync(core_limits, entry.cgroups)
    assert len(limits) >= least
    assert set(limits) == {("1", "1")}

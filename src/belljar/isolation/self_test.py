"""The test of the kill switch in `belljar doctor`: halts a jail without a guest.

It has journal entry, groups and namespaces like a cell; an idle guest agent runs in it.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from belljar.dataclass import dataclass
from belljar.errors import BelljarError
from belljar.isolation import cgroup
from belljar.isolation.hold import new_order
from belljar.isolation.identity import hold_identity
from belljar.isolation.kill import halt, order_all
from belljar.isolation.program_root import (
    PACKAGE_HINT,
    ProgramRoot,
    RootRecipe,
    ensure_root,
    package_program,
)
from belljar.isolation.sandbox import Sandbox, elapsed_ms, owned
from belljar.package import __version__
from belljar.plan.jail import JailIds, JailLimits, JailMount, JailSpec
from belljar.store.journal import Journal, new_cell_id

SELF_TEST: Final = "self-test"
_AGENT: Final = "/agent"
_CONTROLLERS: Final = ("memory", "pids")
_LIMITS: Final = JailLimits(
    memory_max_bytes=64 << 20,
    cpu_quota_percent=None,
    processes=16,
    lifetime_s=60.0,
    address_space_bytes=1 << 30,
)

_MOUNTS: Final = (
    JailMount(kind="tmpfs", target="/dev", size_bytes=1 << 16, inodes=8),
    JailMount(kind="device", source=Path("/dev/null"), target="/dev/null"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTest:
    """`ok`: halted and proven. `is_made`: False: no jail possible."""

    ok: bool
    duration_ms: float
    reason: str = ""
    is_made: bool = True


async def test_switch(home: Path) -> SwitchTest:
    """Make a jail and halt it, in 50 ms; raises no `BelljarError`."""
    began = time.monotonic()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            root = await anyio.to_thread.run_sync(_ensure_agent_root, home)
            sandbox = Sandbox(
                cell_id=new_cell_id(),
                kind="proof",
                limits=_LIMITS,
                controllers=cgroup.usable(_CONTROLLERS),
                identity=hold_identity(home),
                home=home,
            )
            async with AsyncExitStack() as owner, owned(sandbox, owner):
                failure, duration_ms = await _halted(sandbox, theirs, root, home), _since(began)
        except (BelljarError, OSError) as exc:
            reason = exc.what if isinstance(exc, BelljarError) else str(exc)
            return SwitchTest(ok=False, duration_ms=_since(began), reason=reason, is_made=False)
    if (destruction := sandbox.destruction) is None:
        raise RuntimeError("its owner has destroyed it")
    if not failure and not destruction.clean:
        problems = ", ".join((*destruction.survivors, *map(str, destruction.unproven)))
        failure = f"its end is not proven: {problems}"
    return SwitchTest(ok=not failure, duration_ms=duration_ms, reason=failure)


async def _halted(sandbox: Sandbox, theirs: socket.socket, root: ProgramRoot, home: Path) -> str:
    await anyio.to_thread.run_sync(sandbox.make)
    who = sandbox.identity.jail
    spec = JailSpec(
        cell_id=sandbox.cell_id,
        owner_pid=os.getpid(),
        root=root.root,
        binds=(),
        identity=who,
        limits=_LIMITS,
        cgroups=sandbox.groups.directories,
        memory_by_rlimit=not sandbox.groups.directories,
        ids=JailIds(uid_map=((0, who.host_uid, 1),), gid_map=((0, who.host_gid, 1),)),
        mounts=_MOUNTS,
    )
    program = (root.program, "--serve", str(theirs.fileno()))
    sandbox.start_program(spec, program, kept=(theirs.fileno(),))
    await sandbox.wait_running()
    if sandbox.end() is not None:
        return f"what it was to halt ended by itself: {sandbox.diagnosis()}"
    return await anyio.to_thread.run_sync(_halt, home, sandbox.cell_id)


def _halt(home: Path, cell_id: str) -> str:
    journal = Journal(home)
    entry = journal.read(cell_id)
    if entry is None or entry.child is None:
        return "the journal does not name it"
    problems = order_all(
        home, (entry,), new_order("cells", "the kill switch tests itself", rule=SELF_TEST)
    )
    if cell_id not in halt(journal, (entry,), time.monotonic()):
        problems.append("its processes were not halted")
    return "; ".join(problems)


def _ensure_agent_root(home: Path) -> ProgramRoot:
    agent = package_program("agent", "the guest agent")
    recipe = RootRecipe(
        directory="self-tests",
        program=agent,
        what="the guest agent",
        hint=PACKAGE_HINT,
        files=lambda: ((_AGENT, agent),),
        version=lambda: __version__,
        inside=_AGENT,
        directory_points=("/dev",),
    )
    return ensure_root(home, recipe)


def _since(began: float) -> float:
    return round(elapsed_ms(began), 1)

"""Runs the probe in a real jail, for the tests: `jail_runner.py ROOT IMAGE MODE LIFETIME_S` prints
what the probe said, then how it ended.

A program of its own so that an ordinary user's interpreter can run it, and so that it can be
killed. In mode `stay` it prints the pids and waits.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import anyio

from belljar.isolation.identity import hold_identity
from belljar.isolation.jail import start_jail
from belljar.plan.jail import JailBind, JailLimits, JailSpec


async def main(root: Path, image: Path, mode: str, lifetime_s: float) -> None:
    """One jail, from start to end."""
    reader, writer = os.pipe()
    limits = JailLimits(
        memory_max_bytes=1 << 28,
        cpu_quota_percent=None,
        processes=20,
        lifetime_s=lifetime_s,
        address_space_bytes=1 << 28,
    )
    secret = os.open(image, os.O_RDWR) if os.access(image, os.W_OK) else os.open(image, os.O_RDONLY)
    os.set_inheritable(secret, True)  # what a careless owner might leave open
    with hold_identity(root.parent) as identity:
        spec = JailSpec(
            cell_id="c-00000000beef",
            owner_pid=os.getpid(),
            root=root,
            binds=(JailBind(source=image, target="/i/image"),),
            identity=identity.jail,
            limits=limits,
            cgroups=(),
            memory_by_rlimit=True,
        )
        program = ("/probe", str(writer), mode, str(os.getpid()), "/i/image")
        jail = start_jail(spec, program, kept=(writer,), hold=identity.lock_fd)
        os.close(writer)
        try:
            if mode == "stay":  # another program may have ended before its start is heard of
                await jail.wait_running()
                print("supervisor", jail.supervisor.pid if jail.supervisor else 0)
                print("child", jail.child.pid if jail.child else 0)
                print("namespaces", len(jail.namespaces), flush=True)
            await anyio.to_thread.run_sync(relay, reader)
            await jail.wait_run()
        finally:
            with anyio.CancelScope(shield=True):
                await jail.end()
        print(
            "ended", jail.ended.signal, jail.ended.status, jail.ended.cause
        ) if jail.ended else print("ended without a word")
        if jail.diagnosis():
            print("diagnosis", jail.diagnosis())


def relay(reader: int) -> None:
    """Print what the probe says."""
    with contextlib.suppress(OSError), os.fdopen(reader, "rb") as pipe:
        for line in pipe:
            print(line.decode().rstrip(), flush=True)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]))

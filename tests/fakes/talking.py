"""A real client in conversation with the fake guest, and programs that the fake guest can run: one
that hangs, one that floods, one that won't die, one that lies."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from unittest.mock import patch

import anyio
from tests.fakes import guest as g
from tests.fakes.guest import FakeGuest, GuestOp, Script
from tests.machine import PATIENCE_S

from belljar.channel import ExecRequest, GuestClient, client, operations

SHORT_S = 0.3
"""For a guest that will not end what it was told to kill."""
RENEWAL = bytes(8)
CAT = ExecRequest(argv=["cat"])
HANG = ExecRequest(argv=["hang"])
FLOOD = ExecRequest(argv=["flood"], max_stdout_bytes=1 << 40)


async def hang(guest: FakeGuest, op: GuestOp) -> None:
    await guest.started(op)
    await guest.until_killed(op)


async def flood(guest: FakeGuest, op: GuestOp) -> None:
    await guest.started(op)
    while not op.killed:
        await guest.output(op, 1, b"x" * 200_000)
    await guest.finish(op, g.SIGNALED, 9, flags=2)


async def undying(guest: FakeGuest, op: GuestOp) -> None:
    await guest.started(op)
    await anyio.sleep_forever()


def raw(*said: bytes) -> Script:
    """Send exactly that after START, with the operation's id put in."""

    async def script(guest: FakeGuest, op: GuestOp) -> None:
        for part in said:
            await guest.send(part[:8] + struct.pack("<I", op.id) + part[12:])

    return script


@asynccontextmanager
async def talking(
    scripts: dict[bytes, Script] | None = None, *, max_ops: int = 64, kill_s: float = 60
) -> AsyncIterator[tuple[FakeGuest, GuestClient]]:
    """A fake guest that is served, and a client that has shaken hands with it."""
    guest = FakeGuest(
        {b"hang": hang, b"flood": flood, b"undying": undying, **(scripts or {})}, max_ops=max_ops
    )
    try:
        with (
            patch.object(operations, "_KILL_S", kill_s),
            patch.object(client, "_GRACE_S", 0.2),
            anyio.fail_after(PATIENCE_S),
        ):
            async with anyio.create_task_group() as tasks:
                serving = anyio.CancelScope(
                    shield=True
                )  # a guest does not end because its owner was told to
                tasks.start_soon(_serve, guest, serving)
                try:
                    async with aclosing(GuestClient(guest.host_socket)) as talker:
                        await talker.hello()
                        await talker.renew(RENEWAL)
                        yield guest, talker
                finally:
                    serving.cancel()
    finally:
        guest.close()


async def _serve(guest: FakeGuest, serving: anyio.CancelScope) -> None:
    with serving:
        await guest.serve()


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 1000
        await anyio.sleep(0.001)

"""What tests ask of a guest agent, whichever it is: its renewal, a shell script, whether a process
lives, output up to a word."""

from __future__ import annotations

import anyio
import pytest
from tests.machine import PATIENCE_S

from belljar.channel import ExecRequest, GuestClient, Operation


def sh(script: str, *args: str, **rest: object) -> ExecRequest:
    return ExecRequest(argv=["sh", "-c", script, "sh", *args], **rest)  # type: ignore[arg-type]


async def is_alive(client: GuestClient, pid: bytes) -> bool:
    """Whether a process of the guest is there and no zombie."""
    look = 'state=$(cut -d" " -f3 "/proc/$1/stat" 2>/dev/null) && [ "$state" != Z ]'
    return (await client.exec(sh(look, pid.decode().strip()))).returncode == 0


async def read_until(running: Operation, wanted: bytes) -> bytes:
    seen = b""
    with anyio.fail_after(PATIENCE_S):
        async for _, chunk in running:
            seen += chunk
            if wanted in seen:
                return seen
    pytest.fail(f"{wanted!r} never came, but {seen!r}")

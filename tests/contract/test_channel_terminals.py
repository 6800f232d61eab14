"""Terminals: size, control characters, end of input."""

from __future__ import annotations

import pytest
from tests.fakes.asking import read_until, sh

from belljar.channel import ExecRequest, GuestClient, PtySize

pytestmark = pytest.mark.anyio


async def test_terminal_size_and_resize(client: GuestClient) -> None:
    """A command on a terminal sees its size, and a change of it as SIGWINCH."""
    script = "stty size; trap 'stty size; exit 4' WINCH; echo waiting; while :; do sleep 0.05; done"
    async with client.open_exec(sh(script, pty=PtySize(rows=33, cols=101))) as running:
        assert b"33 101" in await read_until(running, b"waiting")
        await running.resize(44, 55)
        assert b"44 55" in await read_until(running, b"44 55")
        assert (await running.wait()).code == 4


async def test_terminal_is_one(client: GuestClient) -> None:
    """Standard input, output and error are the terminal; it is the controlling one."""
    script = (
        "tty >/dev/null && [ -t 1 ] && [ -t 2 ] && echo error >&2 && : </dev/tty && echo fine; exec"
        " sleep 1000"
    )
    async with client.open_exec(sh(script, pty=PtySize(rows=24, cols=80), stdin=True)) as running:
        seen = await read_until(running, b"fine")
        assert b"error\r\n" in seen
        await running.send_stdin(b"\x03")
        assert (await running.wait()).returncode == 130


async def test_terminal_end_of_input(client: GuestClient) -> None:
    """Closing standard input of a terminal is ^D."""
    async with client.open_exec(
        ExecRequest(argv=["cat"], pty=PtySize(rows=24, cols=80), stdin=True)
    ) as running:
        await running.send_stdin(b"hello\n")
        await read_until(running, b"hello\r\nhello\r\n")
        await running.close_stdin()
        assert (await running.wait()).returncode == 0

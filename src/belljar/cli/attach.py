"""`belljar attach`: a terminal in a cell that another process owns."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click

from belljar.cli.complete import cells
from belljar.cli.failures import Misuse
from belljar.errors import HostError
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.harness.attach import FrameReader

_CHUNK_BYTES: Final = 1 << 14


@click.command("attach")
@click.argument("cell_id", metavar="CELL", shell_complete=cells)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD…]")
@click.option("--user", help="Log in as this user of the image (name, uid or uid:gid).")
def attach(cell_id: str, command: tuple[str, ...], user: str | None) -> int:
    """Open a terminal in a cell of a running evaluation or of `belljar shell`.

    CELL is a cell's id, as `belljar ps` and Inspect's sandbox connections show it. What is done in
    it is recorded in that run's ledger, and the cell ends with its sample or shell all the same.
    What the guest writes goes to your terminal as it is: use a terminal you would trust with
    hostile output.
    """
    from belljar.harness.attach import (
        FrameKind,
        FrameReader,
        Opening,
        attach_directory,
        connect_to,
        frame,
    )

    if "/" in cell_id or cell_id in {"", ".", ".."}:
        raise Misuse(
            f"{cell_id!r} is not the id of a cell",
            param="CELL",
            hint="`belljar ps` lists the cells",
        )
    rows, cols = _size()
    opening = Opening(
        argv=command, user=user, rows=rows, cols=cols, term=os.environ.get("TERM", "xterm")
    )
    try:
        stream = connect_to(attach_directory(None) / cell_id)
    except OSError as error:
        raise HostError(
            f"no cell {printable(cell_id)} of yours is running here",
            where="belljar attach",
            hint="`belljar ps` lists the cells; same user, same BELLJAR_HOME",
        ) from error
    with stream, _raw_terminal(), _size_signals() as sizes:
        stream.settimeout(None)
        stream.sendall(frame(FrameKind.OPEN, opening.payload()))
        status = converse(stream, FrameReader(), sizes)
    code, _, why = status.partition(" ")
    if why:
        click.echo(f"belljar: {printable(why)}", err=True)
    return int(code) if code.isdigit() else 1


def converse(stream: socket.socket, reader: FrameReader, sizes: int) -> str:
    """Relay until the other side says how it ended; returns that.

    `sizes` becomes readable when the terminal's size changed.
    """
    from belljar.harness.attach import FrameKind, frame, size_payload

    watched: list[int] = [stream.fileno(), 0, sizes]
    while True:
        readable, _, _ = select.select(watched, [], [])
        if sizes in readable:
            os.read(sizes, 64)
            stream.sendall(frame(FrameKind.RESIZE, size_payload(*_size())))
        if 0 in readable:
            keys = os.read(0, _CHUNK_BYTES)
            stream.sendall(frame(FrameKind.INPUT, keys) if keys else frame(FrameKind.INPUT_END))
            if not keys:
                watched.remove(0)
        if stream.fileno() in readable:
            ended = _show(stream.recv(_CHUNK_BYTES), reader)
            if ended is not None:
                return ended


def _show(chunk: bytes, reader: FrameReader) -> str | None:
    from belljar.harness.attach import FrameKind

    if not chunk:
        return "1 the cell's owner closed the connection"
    for kind, payload in reader.feed(chunk):
        if kind is FrameKind.EXIT:
            return payload.decode("utf-8", "replace")
        while payload:
            payload = payload[os.write(1, payload) :]
    return None


def _size() -> tuple[int, int]:
    with suppress(OSError):
        size = os.get_terminal_size(0)
        return size.lines, size.columns
    return 24, 80


@contextmanager
def _raw_terminal() -> Iterator[None]:
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextmanager
def _size_signals() -> Iterator[int]:
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    before = signal.signal(signal.SIGWINCH, lambda *_: os.write(writing, b"w"))
    try:
        yield reading
    finally:
        signal.signal(signal.SIGWINCH, before)
        os.close(reading)
        os.close(writing)

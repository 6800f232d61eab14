"""`belljar forward`: a port of this host's loopback that leads to a server in a running cell."""

from __future__ import annotations

import ipaddress
import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from belljar.cli.complete import cells
from belljar.errors import HostError
from belljar.units import printable

if TYPE_CHECKING:
    import socket

    from anyio.abc import SocketStream

MAX_CLIENTS: Final = 32
_FORWARD: Final = re.compile(
    r"(?:(?P<host>\[[^\[\]]*\]|[^:/\[\]]+):)?(?P<port>[0-9]{1,5}):(?P<remote>[0-9]{1,5}|/.+)",
    re.DOTALL,
)


def parse_forward(text: str) -> tuple[str, int, int | str]:
    """`[HOST:]LOCAL:REMOTE` as host, port and target. Raises `ValueError`, also for a host that is
    not this host's loopback.
    """
    from belljar.cell.connection import parse_target

    found = _FORWARD.fullmatch(text)
    if found is None or int(found["port"]) > 0xFFFF:
        raise ValueError("write LOCAL:REMOTE, such as 8080:80, 0:80 or 8080:/run/server.sock")
    host = (found["host"] or "127.0.0.1").strip("[]")
    if host == "localhost":
        host = "127.0.0.1"
    try:
        loopback = ipaddress.ip_address(host).is_loopback and "%" not in host
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError("only 127.0.0.1 and ::1 can be listened on; leave the address out")
    remote = found["remote"] if found["remote"].startswith("/") else int(found["remote"])
    parse_target(remote)
    return host, int(found["port"]), remote


@click.command("forward")
@click.argument("cell_id", metavar="CELL", shell_complete=cells)
@click.argument("where", metavar="LOCAL:REMOTE")
@click.option("--json", "as_json", is_flag=True, help="Print the address as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def forward(cell_id: str, where: str, as_json: bool, quiet: bool) -> int:  # noqa: FBT001 - click
    """Listen on this host's loopback and lead each client to a server in a running cell.

    CELL is a cell's id, as `belljar ps` shows it. LOCAL is a port of 127.0.0.1, 0 for a free one;
    REMOTE a port of the cell's loopback, or the path of a unix socket in it. Everybody on this host
    can connect to the port. Each stream is recorded in the cell's ledger. Ends with Ctrl-C, or when
    the cell has ended.

    \b
    Examples:
      belljar forward c-0123456789ab 8080:80
      belljar forward c-0123456789ab 0:/run/server.sock
    """
    from belljar.cli._async import run_async

    if "/" in cell_id or cell_id in {"", ".", ".."}:
        raise click.BadParameter("not a cell's id", param_hint="CELL")
    try:
        host, port, remote = parse_forward(where)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="LOCAL:REMOTE") from None
    return run_async(_forward, cell_id, host, port, remote, as_json=as_json, quiet=quiet)


async def _forward(
    cell_id: str, host: str, port: int, remote: int | str, *, as_json: bool, quiet: bool
) -> int:
    import anyio
    from anyio.abc import SocketAttribute

    (await _connect(cell_id)).close()
    try:
        listener = await anyio.create_tcp_listener(local_host=host, local_port=port)
    except OSError as error:
        raise HostError(
            f"port {port} of {host} can't be listened on: {error.strerror}",
            where="belljar forward",
            hint="write 0 for a free port",
        ) from error
    clients = anyio.CapacityLimiter(MAX_CLIENTS)

    async def serve(client: SocketStream) -> None:
        async with client:
            try:
                clients.acquire_nowait()
            except anyio.WouldBlock:
                return  # closed at once: sockets that wait would use up this process's descriptors
            try:
                why = await _lead(client, cell_id, remote)
            finally:
                clients.release()
        if why:
            click.echo(f"belljar: {printable(why)}", err=True)

    async with listener:
        port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - anyio's, not Django's
        if as_json:
            click.echo(json.dumps({"cell": cell_id, "host": host, "port": port, "remote": remote}))
        elif not quiet:
            click.echo(f"{host}:{port} leads to {printable(str(remote))} of {printable(cell_id)}")
        try:
            await listener.serve(serve)
        except BaseExceptionGroup as group:
            ended, others = group.split(HostError)
            if ended is None or others is not None:
                raise
            raise ended.exceptions[0] from None
    return 0


async def _connect(cell_id: str) -> socket.socket:
    import anyio.to_thread

    from belljar.harness.attach import attach_directory, connect_to

    try:
        return await anyio.to_thread.run_sync(connect_to, attach_directory(None) / cell_id)
    except OSError as error:
        raise HostError(
            f"no cell {printable(cell_id)} of yours is running here",
            where="belljar forward",
            hint="`belljar ps` lists the cells; same user, same BELLJAR_HOME",
        ) from error


async def _lead(client: SocketStream, cell_id: str, remote: int | str) -> str:
    """One client, both ways. Returns why it could not be led there, or nothing."""
    import anyio
    from anyio.abc import SocketStream

    from belljar.harness.attach import FrameKind, FrameReader, frame, frames

    reader, why = FrameReader(), ""
    async with await SocketStream.from_socket(await _connect(cell_id)) as owner:
        await owner.send(frame(FrameKind.CONNECT, str(remote).encode()))

        async def up() -> None:
            async for chunk in client:
                for piece in frames(FrameKind.INPUT, chunk):
                    await owner.send(piece)
            await owner.send(frame(FrameKind.INPUT_END))

        async def down() -> str:
            async for chunk in owner:
                for kind, payload in reader.feed(chunk):
                    if kind is FrameKind.OUTPUT:
                        await client.send(payload)
                    elif kind is FrameKind.OUTPUT_END:
                        await client.send_eof()
                    elif kind is FrameKind.EXIT:
                        return payload.decode("utf-8", "replace").partition(" ")[2]
            return ""

        async with anyio.create_task_group() as tasks:

            async def until_gone() -> None:
                try:
                    await up()
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    tasks.cancel_scope.cancel()  # the client, or the cell's owner, has gone

            tasks.start_soon(until_gone)
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                why = await down()
            tasks.cancel_scope.cancel()
    return why

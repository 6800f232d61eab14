"""A gateway's process for tests: the real `run`, on sockets that it inherits, with stand-ins of a
few lines. `python gateway_main.py CONFIG FDS`."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from typing import Any

from belljar.dataclass import from_json
from belljar.network import stand_ins
from belljar.network.decide import CATCH_ALL
from belljar.network.gateway.config import GatewayConfig, Listeners
from belljar.network.gateway.context import (
    App,
    Message,
    Receive,
    Scope,
    Send,
    StandInContext,
    StreamApp,
)
from belljar.network.gateway.serve import run


def make(kind: str, context: StandInContext) -> Any:  # noqa: ANN401 - an app or a stream's server, by kind
    """A stand-in of a few lines: `smtp` greets and echoes lines, `http` and the range's catch-all
    are `echo`. Every other kind is the real one."""
    if kind == "smtp":
        return greeter(context)
    return (
        echo(context)
        if kind == "http" or context.id == CATCH_ALL
        else stand_ins.make(kind, context)
    )


def greeter(context: StandInContext) -> StreamApp:
    """Speaks first, then gives back each line."""

    async def app(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cell: str) -> None:
        writer.write(b"220 ready " + cell.encode() + b"\r\n")
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
            if line == b"QUIT\r\n":
                await context.record("network.attempt", {"what": "quit"})
                return

    return app


async def body_of(receive: Receive) -> bytes:
    """The request's whole body."""
    got = b""
    message: Message = {"more_body": True}
    while message.get("more_body"):
        message = await receive()
        got += message.get("body", b"")
    return got


def echo(context: StandInContext) -> App:
    """Answers by path."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == "/early":  # without reading
            await respond(send, b"early")
        elif path == "/crash":
            raise RuntimeError("a stand-in's fault")
        elif path == "/spin":  # for years
            await respond(send, b"%d" % sum(1 for _ in range(1 << 60)))
        elif path == "/never":
            await asyncio.Event().wait()
        elif path == "/stream":
            await respond_with(send, [b"piece %d\n" % number for number in range(5)])
        elif path == "/big":  # 8 MiB
            await respond_with(send, [b"x" * 65536] * 128)
        else:
            if path == "/attempt":
                await context.record("network.attempt", {"what": "publish"})
            seen = {
                "stand_in": context.id,
                "path": path,
                "query": scope["query_string"].decode(),
                "state": dict(scope["state"]),
                "version": scope["http_version"],
                "body": (await body_of(receive)).decode("latin-1")[:200_000],
            }
            await respond(send, json.dumps(seen).encode())

    return app


async def respond(send: Send, body: bytes) -> None:
    """One whole answer."""
    headers = [(b"content-length", str(len(body)).encode()), (b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def respond_with(send: Send, pieces: list[bytes]) -> None:
    """An answer in pieces."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Serves on the descriptors that argv names: `{"events", "dns_udp", "sink", "tcp": {port: fd}}`."""
    config = from_json(GatewayConfig, json.loads(sys.argv[1]))
    fds = json.loads(sys.argv[2])
    tcp = {int(port): socket.socket(fileno=fd) for port, fd in fds["tcp"].items()}
    for sock in tcp.values():
        sock.setblocking(False)
    taken = {name: socket.socket(fileno=fds[name]) for name in ("events", "dns_udp", "sink")}
    for sock in taken.values():
        sock.setblocking(False)
    listeners = Listeners(dns_udp=taken["dns_udp"], tcp=tcp, sink=taken["sink"])
    loop = asyncio.SelectorEventLoop()
    loop.run_until_complete(run(config, listeners, taken["events"], make))
    os._exit(0)


if __name__ == "__main__":
    main()
